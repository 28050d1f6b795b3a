package penstock

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	pb "penstock.dev/examples/go/penstockv1"
)

const (
	format               = 1
	maxRecords           = 1 << 20
	maxUncompressedBytes = 64 << 20
	minTimestampMs       = -62_135_596_800_000 // 0001-01-01
	maxTimestampMs       = 253_402_300_799_999 // 9999-12-31, its last millisecond
	maxZstdWindowBytes   = 8 << 20
	maxCoveredOffsets    = 1<<31 - 1 // of a compacted batch
	knownFlags           = 7
	flagControl          = 2
	flagCompacted        = 4
)

// Identity makes a batch idempotent: brokers tell it from one they have. All -1: not idempotent.
type Identity struct {
	ProducerID    int64
	ProducerEpoch int32
	BaseSequence  int32
}

// NoIdentity is that of a batch whose retries may duplicate.
var NoIdentity = Identity{-1, -1, -1}

// BuildBatch seals records into a batch as a broker wants it; it stamps the offset later.
func BuildBatch(records []Record, codec pb.Codec, identity Identity) (*pb.RecordBatch, error) {
	if len(records) < 1 || len(records) > maxRecords {
		return nil, newError(pb.ErrorCode_ERROR_CODE_RECORD_TOO_LARGE,
			fmt.Sprintf("%d records in a batch; 1 to %d are allowed", len(records), maxRecords))
	}
	first, largest := records[0].TimestampMs, records[0].TimestampMs
	for _, record := range records {
		if record.TimestampMs < minTimestampMs || record.TimestampMs > maxTimestampMs {
			return nil, newError(pb.ErrorCode_ERROR_CODE_INVALID_TIMESTAMP,
				fmt.Sprintf("timestamp %d; is it in milliseconds?", record.TimestampMs))
		}
		largest = max(largest, record.TimestampMs)
	}
	message, err := proto.Marshal(encodeRecords(records))
	if err != nil {
		return nil, err
	}
	if len(message) > maxUncompressedBytes {
		return nil, newError(pb.ErrorCode_ERROR_CODE_RECORD_TOO_LARGE,
			fmt.Sprintf("a batch of %d bytes; the limit is %d", len(message), maxUncompressedBytes))
	}
	payload, err := compress(codec, message)
	if err != nil {
		return nil, err
	}
	batch := &pb.RecordBatch{
		RecordCount:       uint32(len(records)),
		FirstTimestampMs:  first,
		MaxTimestampMs:    largest,
		Codec:             codec,
		ProducerId:        identity.ProducerID,
		ProducerEpoch:     identity.ProducerEpoch,
		BaseSequence:      identity.BaseSequence,
		UncompressedBytes: uint32(len(message)),
		Payload:           payload,
	}
	batch.Crc = checksum(batch)
	return batch, nil
}

// OpenBatch checks a batch and returns its records. Nothing of a batch that fails is returned.
func OpenBatch(batch *pb.RecordBatch) ([]Record, error) {
	if err := checkHeader(batch); err != nil {
		return nil, err
	}
	message, err := decompress(batch)
	if err != nil {
		return nil, err
	}
	if len(message) != int(batch.UncompressedBytes) {
		return nil, corrupt("the payload holds %d bytes, the header says %d",
			len(message), batch.UncompressedBytes)
	}
	return decodeRecords(message, batch)
}

// sealedHeader is what the CRC covers before the payload: 44 bytes, drawn in records.proto.
func sealedHeader(batch *pb.RecordBatch) []byte {
	header := make([]byte, 0, 44)
	header = append(header, format, byte(batch.Codec))
	header = binary.BigEndian.AppendUint16(header, uint16(batch.Flags))
	header = binary.BigEndian.AppendUint32(header, batch.RecordCount)
	header = binary.BigEndian.AppendUint64(header, uint64(batch.FirstTimestampMs))
	header = binary.BigEndian.AppendUint64(header, uint64(batch.MaxTimestampMs))
	header = binary.BigEndian.AppendUint64(header, uint64(batch.ProducerId))
	header = binary.BigEndian.AppendUint32(header, uint32(batch.ProducerEpoch))
	header = binary.BigEndian.AppendUint32(header, uint32(batch.BaseSequence))
	return binary.BigEndian.AppendUint32(header, batch.UncompressedBytes)
}

func checksum(batch *pb.RecordBatch) uint32 {
	return crc32.Update(crc32.Checksum(sealedHeader(batch), castagnoli), castagnoli, batch.Payload)
}

func checkHeader(batch *pb.RecordBatch) error {
	most := uint32(maxRecords)
	if batch.Flags&flagCompacted != 0 {
		most = maxCoveredOffsets
	}
	switch first, largest := batch.FirstTimestampMs, batch.MaxTimestampMs; {
	case batch.RecordCount < 1 || batch.RecordCount > most:
		return corrupt("record count is %d; 1 to %d are allowed", batch.RecordCount, most)
	case batch.Codec < pb.Codec_CODEC_NONE || batch.Codec > pb.Codec_CODEC_LZ4:
		return unsupported(batch.Codec)
	case batch.Flags&^knownFlags != 0:
		return corrupt("flags are %#x; known are %#x", batch.Flags, knownFlags)
	case batch.UncompressedBytes > maxUncompressedBytes:
		return newError(pb.ErrorCode_ERROR_CODE_RECORD_TOO_LARGE,
			fmt.Sprintf("%d bytes uncompressed; the limit is %d",
				batch.UncompressedBytes, maxUncompressedBytes))
	case !consistent(batch):
		return corrupt("producer id, epoch and sequence are %d, %d, %d; all must be -1 or none negative",
			batch.ProducerId, batch.ProducerEpoch, batch.BaseSequence)
	case first < minTimestampMs || largest < first || largest > maxTimestampMs:
		return newError(pb.ErrorCode_ERROR_CODE_INVALID_TIMESTAMP,
			fmt.Sprintf("first and max timestamp are %d and %d ms", first, largest))
	case checksum(batch) != batch.Crc:
		return corrupt("CRC-32C is %#08x, the header says %#08x", checksum(batch), batch.Crc)
	}
	return nil
}

func consistent(batch *pb.RecordBatch) bool {
	identity := Identity{batch.ProducerId, batch.ProducerEpoch, batch.BaseSequence}
	return identity == NoIdentity ||
		(identity.ProducerID >= 0 && identity.ProducerEpoch >= 0 && identity.BaseSequence >= 0)
}

var (
	encoder = sync.OnceValues(func() (*zstd.Encoder, error) { return zstd.NewWriter(nil) })
	decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil,
			zstd.WithDecoderMaxMemory(maxUncompressedBytes),
			zstd.WithDecoderMaxWindow(maxZstdWindowBytes))
	})
)

func compress(codec pb.Codec, message []byte) ([]byte, error) {
	switch codec {
	case pb.Codec_CODEC_NONE:
		return message, nil
	case pb.Codec_CODEC_ZSTD:
		zstandard, err := encoder()
		if err != nil {
			return nil, err
		}
		return zstandard.EncodeAll(message, nil), nil
	}
	return nil, unsupported(codec)
}

func decompress(batch *pb.RecordBatch) ([]byte, error) {
	switch batch.Codec {
	case pb.Codec_CODEC_NONE:
		return batch.Payload, nil
	case pb.Codec_CODEC_ZSTD:
		zstandard, err := decoder()
		if err != nil {
			return nil, err
		}
		message, err := zstandard.DecodeAll(batch.Payload, nil)
		if err != nil {
			return nil, corrupt("zstd: %v", err)
		}
		return message, nil
	}
	return nil, unsupported(batch.Codec)
}

func unsupported(codec pb.Codec) error {
	return newError(pb.ErrorCode_ERROR_CODE_UNSUPPORTED_CODEC,
		fmt.Sprintf("codec %s; this client has none and zstd", codec))
}
