// Package penstock is a small client for a Penstock cluster: it produces, and fetches.
//
//	Record ──▶ BuildBatch ──▶ Producer ──▶ the partition's leader
//	Record ◀── OpenBatch  ◀── Fetcher  ◀──┘        ▲
//	                              Client: metadata, who leads what
//
// It is written to be read beside docs/decisions/0003-record-batch-format.md and 0004-key-hash.md,
// and checked against the golden vectors in tests/vectors. The protocol itself is in package
// penstockv1, generated from proto/.
package penstock

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	pb "penstock.dev/examples/go/penstockv1"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// PartitionForKey says where a key belongs, in every client and for ever: crc32c(key) mod count.
//
// An empty key is a key; a record whose key is nil goes wherever the producer likes.
func PartitionForKey(key []byte, count int) int {
	return int(crc32.Checksum(key, castagnoli) % uint32(count))
}

// partitioner is the topic's choice, its setting "partitioner": PartitionForKey unless it says otherwise.
func partitioner(configs map[string]string) (func(key []byte, count int) int, error) {
	switch name := configs["partitioner"]; name {
	case "", "crc32c":
		return PartitionForKey, nil
	case "murmur2":
		return kafkaPartitionForKey, nil
	default:
		return nil, newError(pb.ErrorCode_ERROR_CODE_INVALID_CONFIG,
			fmt.Sprintf("the topic's partitioner is %q; this client knows crc32c and murmur2", name))
	}
}

// kafkaPartitionForKey is the choice of Kafka's Java clients.
func kafkaPartitionForKey(key []byte, count int) int {
	return int((murmur2(key) & 0x7fffffff) % uint32(count))
}

// murmur2 is MurmurHash2 (Austin Appleby), 32 bits, with Kafka's seed.
func murmur2(key []byte) uint32 {
	const factor = 0x5bd1e995
	mixed := uint32(0x9747b28c) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		word := binary.LittleEndian.Uint32(key) * factor
		word = (word ^ word>>24) * factor
		mixed = mixed*factor ^ word
	}
	if len(key) > 0 {
		for i, b := range key {
			mixed ^= uint32(b) << (8 * i)
		}
		mixed *= factor
	}
	mixed = (mixed ^ mixed>>13) * factor
	return mixed ^ mixed>>15
}
