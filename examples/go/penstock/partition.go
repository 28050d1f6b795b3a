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

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// PartitionForKey says where a key belongs, in every client and for ever: crc32c(key) mod count.
//
// An empty key is a key; a record whose key is nil goes wherever the producer likes.
func PartitionForKey(key []byte, count int) int {
	return int(crc32.Checksum(key, castagnoli) % uint32(count))
}
