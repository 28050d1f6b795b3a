package penstock

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "penstock.dev/examples/go/penstockv1"
)

// hexBytes is null or hexadecimal in the vectors.
type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(text []byte) error {
	var given *string
	if err := json.Unmarshal(text, &given); err != nil || given == nil {
		return err
	}
	decoded, err := hex.DecodeString(*given)
	*h = append(hexBytes{}, decoded...)
	return err
}

// header is a pair in the vectors: a name, and a value as hexBytes.
type header struct {
	name  string
	value hexBytes
}

func (h *header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.name, &h.value})
}

type vectors struct {
	Accepted []struct {
		Name    string
		Records []struct {
			Key, Value  hexBytes
			TimestampMs int64 `json:"timestamp_ms"`
			Headers     []header
		}
		Codec          string
		ProducerID     int64    `json:"producer_id"`
		ProducerEpoch  int32    `json:"producer_epoch"`
		BaseSequence   int32    `json:"base_sequence"`
		RecordsMessage hexBytes `json:"records_message"`
		SealedHeader   hexBytes `json:"sealed_header"`
		RecordBatch    hexBytes `json:"record_batch"`
	}
	Compacted []struct {
		Name    string
		Records []struct {
			Offset      int64
			Key, Value  hexBytes
			TimestampMs int64 `json:"timestamp_ms"`
		}
		NextOffset  int64    `json:"next_offset"`
		RecordBatch hexBytes `json:"record_batch"`
	}
	Refused []struct {
		Name, Code  string
		RecordBatch hexBytes `json:"record_batch"`
	}
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "tests", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func readVectors(t *testing.T) (known vectors) {
	t.Helper()
	read(t, "records.json", &known)
	if len(known.Accepted) == 0 || len(known.Refused) == 0 {
		t.Fatal("records.json has no cases")
	}
	return known
}

func batchOf(t *testing.T, serialized []byte) *pb.RecordBatch {
	t.Helper()
	batch := &pb.RecordBatch{}
	if err := proto.Unmarshal(serialized, batch); err != nil {
		t.Fatal(err)
	}
	return batch
}

func codeOf(err error) pb.ErrorCode {
	var known *Error
	if !errors.As(err, &known) {
		return pb.ErrorCode_ERROR_CODE_UNSPECIFIED
	}
	return known.Detail.Code
}

func TestAcceptedBatches(t *testing.T) {
	for _, one := range readVectors(t).Accepted {
		t.Run(one.Name, func(t *testing.T) {
			var records []Record
			for _, given := range one.Records {
				record := Record{Key: given.Key, Value: given.Value, TimestampMs: given.TimestampMs}
				for _, pair := range given.Headers {
					record.Headers = append(record.Headers, Header{pair.name, pair.value})
				}
				records = append(records, record)
			}
			batch := batchOf(t, one.RecordBatch)
			if sealed := sealedHeader(batch); !bytes.Equal(sealed, one.SealedHeader) {
				t.Errorf("sealed header %x, want %x", sealed, one.SealedHeader)
			}
			if one.Codec == "lz4" {
				if _, err := OpenBatch(batch); codeOf(err) != pb.ErrorCode_ERROR_CODE_UNSUPPORTED_CODEC {
					t.Errorf("lz4 must be refused by name, got %v", err)
				}
				return
			}
			opened, err := OpenBatch(batch)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, opened, records, 0)

			identity := Identity{one.ProducerID, one.ProducerEpoch, one.BaseSequence}
			built, err := BuildBatch(records, batch.Codec, identity)
			if err != nil {
				t.Fatal(err)
			}
			if one.Codec == "none" {
				if written, _ := proto.Marshal(built); !bytes.Equal(written, one.RecordBatch) {
					t.Errorf("built %x, want %x", written, one.RecordBatch)
				}
			}
			built.BaseOffset = 4711 // the broker's stamp is outside the CRC
			reopened, err := OpenBatch(built)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, reopened, records, 4711)
		})
	}
}

// expect compares, and tells null from empty.
func expect(t *testing.T, seen, want []Record, baseOffset int64) {
	t.Helper()
	for i := range want {
		want[i].Offset = baseOffset + int64(i)
	}
	if !reflect.DeepEqual(seen, want) {
		t.Errorf("records\n%#v, want\n%#v", seen, want)
	}
}

func TestCompactedBatches(t *testing.T) {
	known := readVectors(t)
	if len(known.Compacted) == 0 {
		t.Fatal("records.json has no compacted batches")
	}
	for _, one := range known.Compacted {
		t.Run(one.Name, func(t *testing.T) {
			batch := batchOf(t, one.RecordBatch)
			records, err := OpenBatch(batch)
			if err != nil || len(records) != len(one.Records) {
				t.Fatalf("got %v, %v; want %v", records, err, one.Records)
			}
			for i, want := range one.Records {
				got := records[i]
				if got.Offset != want.Offset || got.TimestampMs != want.TimestampMs ||
					!bytes.Equal(got.Key, want.Key) || !bytes.Equal(got.Value, want.Value) {
					t.Errorf("got %v, want %v", got, want)
				}
			}
			if next := batch.BaseOffset + int64(batch.RecordCount); next != one.NextOffset {
				t.Errorf("next offset %d, want %d", next, one.NextOffset)
			}
		})
	}
}

func TestRefusedBatches(t *testing.T) {
	for _, one := range readVectors(t).Refused {
		t.Run(one.Name, func(t *testing.T) {
			records, err := OpenBatch(batchOf(t, one.RecordBatch))
			if want := pb.ErrorCode_value["ERROR_CODE_"+one.Code]; codeOf(err) != pb.ErrorCode(want) {
				t.Errorf("got %v, %v; want %s", records, err, one.Code)
			}
		})
	}
}

func TestPartitions(t *testing.T) {
	var known struct {
		Cases []struct {
			Key        hexBytes
			Crc32c     string
			Partitions map[string]int
			Murmur2    string
			Kafka      map[string]int
		}
	}
	read(t, "partitioner.json", &known)
	if len(known.Cases) == 0 {
		t.Fatal("partitioner.json has no cases")
	}
	for _, one := range known.Cases {
		if hash := fmt.Sprintf("%08x", crc32.Checksum(one.Key, castagnoli)); hash != one.Crc32c {
			t.Errorf("crc32c of %x is %s, want %s", one.Key, hash, one.Crc32c)
		}
		if hash := fmt.Sprintf("%08x", murmur2(one.Key)); hash != one.Murmur2 {
			t.Errorf("murmur2 of %x is %s, want %s", one.Key, hash, one.Murmur2)
		}
		checkPartitions(t, one.Key, one.Partitions, map[string]string{})
		checkPartitions(t, one.Key, one.Kafka, map[string]string{"partitioner": "murmur2"})
	}
}

func checkPartitions(t *testing.T, key []byte, wanted map[string]int, configs map[string]string) {
	choose, err := partitioner(configs)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range wanted {
		count, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		if seen := choose(key, count); seen != want {
			t.Errorf("%x of %d is in partition %d by %v, want %d", key, count, seen, configs, want)
		}
	}
}

func TestAnUnknownPartitionerIsRefused(t *testing.T) {
	_, err := partitioner(map[string]string{"partitioner": "dice"})
	if codeOf(err) != pb.ErrorCode_ERROR_CODE_INVALID_CONFIG {
		t.Errorf("got %v", err)
	}
}

func TestMistakesAreFoundBeforeAnythingIsSent(t *testing.T) {
	for name, one := range map[string]struct {
		records []Record
		codec   pb.Codec
		want    pb.ErrorCode
	}{
		"no records":   {nil, pb.Codec_CODEC_NONE, pb.ErrorCode_ERROR_CODE_RECORD_TOO_LARGE},
		"microseconds": {[]Record{{TimestampMs: 1_700_000_000_000_000}}, pb.Codec_CODEC_NONE, pb.ErrorCode_ERROR_CODE_INVALID_TIMESTAMP},
		"lz4":          {[]Record{{}}, pb.Codec_CODEC_LZ4, pb.ErrorCode_ERROR_CODE_UNSUPPORTED_CODEC},
	} {
		if _, err := BuildBatch(one.records, one.codec, NoIdentity); codeOf(err) != one.want {
			t.Errorf("%s: got %v, want %s", name, err, one.want)
		}
	}
}

func TestTheProtocolSaysWhatToRetry(t *testing.T) {
	for code, want := range map[pb.ErrorCode]bool{
		pb.ErrorCode_ERROR_CODE_NOT_LEADER:            true,
		pb.ErrorCode_ERROR_CODE_NOT_ENOUGH_REPLICAS:   true,
		pb.ErrorCode_ERROR_CODE_RECORD_TOO_LARGE:      false,
		pb.ErrorCode_ERROR_CODE_OUT_OF_ORDER_SEQUENCE: false,
		pb.ErrorCode(999):                             false,
	} {
		if seen := newError(code, "").Retriable(); seen != want {
			t.Errorf("%s: retriable is %v", code, seen)
		}
	}
}
