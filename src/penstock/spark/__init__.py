"""The PySpark data source: topics as batch and streaming DataFrames.

Belongs here: options and their meaning (`options`, `boundary`), offsets as they stand in a
checkpoint (`offsets`), the decisions of a trigger (`admission`, `planning`, `data_loss`)
and of a batch's end (`decision`), and thin shells that obey them: `source` (what Spark
finds), `batch` and `stream` (readers), `exactly_once` (writers), `cluster` (offset look-ups, driver
side), `ranges` (record reads by the client's range reader, executor side), `edge` (how errors
leave).

Never: messages of the protocol or a channel (that is `penstock.client`), or an import of grpc,
pyarrow or the client when this package is imported: Spark imports the shim `pyspark_penstock` in
every process, and a failure there would take all other Python sources down with it. pyspark is
imported only here and in the shim.

The decision modules import neither pyspark nor anything that does I/O.
"""
