"""Message streams: bytes in order, in both directions, over one connection.

    contract  what a stream and its server are          end      the receiving half, for any carrier
    frames    bytes on the wire: pure                   serving  the tasks of a server
    tcp       the carrier of brokers and clients        calls    the carrier to older releases: gRPC
    parsing   messages as protobuf                      accepting  with TLS, for `tcp`
    secured   TLS between a socket and a protocol

Belongs here: connections, framing, backpressure, how a stream ends. Never here: what the messages
mean.
"""
