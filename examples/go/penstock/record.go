package penstock

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "penstock.dev/examples/go/penstockv1"
)

// Record is one entry of a partition. A nil Key or Value is null, which is not the same as empty.
type Record struct {
	// Set by Fetcher; ignored when producing.
	Partition int   `json:"partition"`
	Offset    int64 `json:"offset"`

	// Milliseconds since 1970-01-01 UTC.
	TimestampMs int64    `json:"timestamp_ms"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []Header `json:"headers,omitempty"`
}

// Header is a named value beside a record. Names may repeat; a nil Value is null.
type Header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

const null = -1

// column joins entries end to end; all null: nothing, which is the canonical form of it.
func column(count int, entry func(int) []byte) (data []byte, lengths []int32) {
	lengths = make([]int32, count)
	allNull := true
	for i := range count {
		bytes := entry(i)
		if bytes == nil {
			lengths[i] = null
			continue
		}
		allNull = false
		lengths[i] = int32(len(bytes))
		data = append(data, bytes...)
	}
	if allNull {
		return nil, nil
	}
	return data, lengths
}

// encodeRecords lays records out in columns, in canonical form.
func encodeRecords(records []Record) *pb.Records {
	message := &pb.Records{}
	message.KeyData, message.KeyLengths =
		column(len(records), func(i int) []byte { return records[i].Key })
	message.ValueData, message.ValueLengths =
		column(len(records), func(i int) []byte { return records[i].Value })

	var headers []Header
	deltas := make([]int64, len(records))
	counts := make([]int32, len(records))
	differ := false
	for i, record := range records {
		deltas[i] = record.TimestampMs - records[0].TimestampMs
		differ = differ || deltas[i] != 0
		counts[i] = int32(len(record.Headers))
		headers = append(headers, record.Headers...)
	}
	if differ {
		message.TimestampDeltasMs = deltas
	}
	if len(headers) > 0 {
		message.HeaderCounts = counts
		message.HeaderKeyData, message.HeaderKeyLengths =
			column(len(headers), func(i int) []byte { return append([]byte{}, headers[i].Name...) })
		message.HeaderValueData, message.HeaderValueLengths =
			column(len(headers), func(i int) []byte { return headers[i].Value })
		if message.HeaderValueLengths == nil { // unlike keys and values, every header has a length
			for range headers {
				message.HeaderValueLengths = append(message.HeaderValueLengths, null)
			}
		}
	}
	return message
}

// cut takes a column apart. Nothing is copied: entries share the data's memory.
func cut(name string, data []byte, lengths []int32, count int) ([][]byte, error) {
	if len(lengths) == 0 {
		if len(data) > 0 {
			return nil, corrupt("%s have data and no lengths", name)
		}
		return make([][]byte, count), nil
	}
	if len(lengths) != count {
		return nil, corrupt("%s have %d lengths for %d entries", name, len(lengths), count)
	}
	entries := make([][]byte, count)
	for i, length := range lengths {
		if length == null {
			continue
		}
		if length < null || int(length) > len(data) {
			return nil, corrupt("%s[%d] has length %d, %d bytes are left", name, i, length, len(data))
		}
		entries[i] = data[:length:length]
		if length == 0 {
			entries[i] = []byte{}
		}
		data = data[length:]
	}
	if len(data) > 0 {
		return nil, corrupt("%s have %d bytes that belong to no entry", name, len(data))
	}
	return entries, nil
}

// decodeRecords is the way back from a serialized Records message; header is its batch.
func decodeRecords(serialized []byte, header *pb.RecordBatch) ([]Record, error) {
	if err := checkWire(serialized); err != nil {
		return nil, err
	}
	message := &pb.Records{}
	if err := proto.Unmarshal(serialized, message); err != nil {
		return nil, corrupt("not a Records message: %v", err)
	}
	deltas, err := offsetDeltas(message.OffsetDeltas, header)
	if err != nil {
		return nil, err
	}
	count := len(deltas)
	keys, err := cut("keys", message.KeyData, message.KeyLengths, count)
	if err != nil {
		return nil, err
	}
	values, err := cut("values", message.ValueData, message.ValueLengths, count)
	if err != nil {
		return nil, err
	}
	headers, err := cutHeaders(message, count)
	if err != nil {
		return nil, err
	}
	times, err := timestamps(message.TimestampDeltasMs, count, header)
	if err != nil {
		return nil, err
	}
	records := make([]Record, count)
	for i := range records {
		records[i] = Record{
			Offset:      header.BaseOffset + deltas[i],
			TimestampMs: times[i],
			Key:         keys[i],
			Value:       values[i],
			Headers:     headers[i],
		}
	}
	return records, nil
}

func cutHeaders(message *pb.Records, count int) ([][]Header, error) {
	perRecord := make([][]Header, count)
	total := 0
	if len(message.HeaderCounts) > 0 && len(message.HeaderCounts) != count {
		return nil, corrupt("%d header counts for %d records", len(message.HeaderCounts), count)
	}
	for _, n := range message.HeaderCounts {
		if n < 0 || total+int(n) > maxRecords {
			return nil, corrupt("a header count is %d; 0 to %d in all are allowed", n, maxRecords)
		}
		total += int(n)
	}
	if len(message.HeaderKeyLengths) != total || len(message.HeaderValueLengths) != total {
		return nil, corrupt("%d headers are counted, %d named, %d have values",
			total, len(message.HeaderKeyLengths), len(message.HeaderValueLengths))
	}
	names, err := cut("header names", message.HeaderKeyData, message.HeaderKeyLengths, total)
	if err != nil {
		return nil, err
	}
	values, err := cut("header values", message.HeaderValueData, message.HeaderValueLengths, total)
	if err != nil {
		return nil, err
	}
	next := 0
	for record, n := range message.HeaderCounts {
		for range n {
			if names[next] == nil || !utf8.Valid(names[next]) {
				return nil, corrupt("header name %q is null or not UTF-8", names[next])
			}
			perRecord[record] = append(perRecord[record],
				Header{Name: string(names[next]), Value: values[next]})
			next++
		}
	}
	return perRecord, nil
}

// offsetDeltas says where the records are that a batch holds: everywhere in what it covers, but
// in a compacted batch only where the message says.
func offsetDeltas(given []int32, header *pb.RecordBatch) ([]int64, error) {
	if header.Flags&flagCompacted == 0 {
		if len(given) > 0 {
			return nil, corrupt("offset deltas in a batch that is not flagged as compacted")
		}
		deltas := make([]int64, header.RecordCount)
		for i := range deltas {
			deltas[i] = int64(i)
		}
		return deltas, nil
	}
	if len(given) > maxRecords {
		return nil, corrupt("%d records are left; at most %d are allowed", len(given), maxRecords)
	}
	deltas := make([]int64, len(given))
	last := int64(-1)
	for i, delta := range given {
		deltas[i] = int64(delta)
		if deltas[i] <= last || deltas[i] >= int64(header.RecordCount) {
			return nil, corrupt("offset delta %d behind %d, %d offsets are covered",
				delta, last, header.RecordCount)
		}
		last = deltas[i]
	}
	return deltas, nil
}

func timestamps(deltas []int64, count int, header *pb.RecordBatch) ([]int64, error) {
	if len(deltas) == 0 {
		deltas = make([]int64, count)
	}
	if len(deltas) != count || count > 0 && deltas[0] != 0 {
		return nil, corrupt("%d timestamp differences for %d records, or the first is not 0",
			len(deltas), count)
	}
	times := make([]int64, count)
	largest := header.FirstTimestampMs
	for i, delta := range deltas {
		// Both timestamps are in years 1 to 9999, so that a difference beyond is nonsense
		// and the sum cannot overflow.
		if delta < minTimestampMs-maxTimestampMs || delta > maxTimestampMs-minTimestampMs {
			return nil, corrupt("timestamp difference %d", delta)
		}
		times[i] = header.FirstTimestampMs + delta
		if times[i] < minTimestampMs {
			return nil, corrupt("timestamp %d", times[i])
		}
		largest = max(largest, times[i])
	}
	if largest != header.MaxTimestampMs {
		return nil, corrupt("the largest timestamp is %d, the header says %d",
			largest, header.MaxTimestampMs)
	}
	if header.AppendTimeMs != 0 { // message.timestamp.type=LogAppendTime
		for i := range times {
			times[i] = header.AppendTimeMs
		}
	}
	return times, nil
}

// checkWire refuses what proto3 would allow and the format does not: a known field that is not
// packed, or comes twice.
func checkWire(message []byte) error {
	const known, fieldsMax = 11, 64
	var seen [known + 1]bool
	for fields := 0; len(message) > 0; fields++ {
		number, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return corrupt("field %d: %v", fields, protowire.ParseError(size))
		}
		if fields == fieldsMax {
			return corrupt("more than %d fields", fieldsMax)
		}
		message = message[size:]
		if number > known {
			continue
		}
		if kind != protowire.BytesType {
			return corrupt("field %d has wire type %d; it must be packed", number, kind)
		}
		if seen[number] {
			return corrupt("field %d appears twice", number)
		}
		seen[number] = true
	}
	return nil
}

func corrupt(format string, arguments ...any) error {
	return newError(pb.ErrorCode_ERROR_CODE_CORRUPT_BATCH,
		"record batch is corrupt: "+fmt.Sprintf(format, arguments...))
}
