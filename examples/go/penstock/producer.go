package penstock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	pb "penstock.dev/examples/go/penstockv1"
)

// Producer writes records with acks=all, each exactly once however often it has to try.
//
// Every batch carries (producer id, epoch, sequence); a broker that has it already says so. A
// sequence belongs to its batch for ever. So when a batch is given up and may be in the log, the
// producer has ended, and another one, which gets another id, may take over.
type Producer struct {
	client *Client
	codec  pb.Codec

	mu       sync.Mutex // one Produce at a time: order
	identity *Identity
	next     map[logOf]int32
	ended    error
}

// logOf is a partition of a topic by its id: one that is created again has another, and begins anew.
type logOf struct {
	topicID   string
	partition int
}

// NewProducer makes a producer on a client; nothing needs to be closed.
func NewProducer(client *Client, codec pb.Codec) *Producer {
	return &Producer{client: client, codec: codec, next: map[logOf]int32{}}
}

// Produce returns when all in-sync replicas have every record. The order of records with the
// same key is kept, also from one call to the next. The context bounds all attempts.
//
// After an error some partitions may have their records; those that have are not told apart.
func (p *Producer) Produce(ctx context.Context, topic string, records []Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return fmt.Errorf("this producer has ended: %w", p.ended)
	}
	info, err := p.client.Topic(ctx, topic)
	if err != nil {
		return err
	}
	if err := p.identify(ctx, topic); err != nil {
		return err
	}
	choose, err := partitioner(info.Configs)
	if err != nil {
		return err
	}
	parts := split(records, len(info.Partitions), choose)
	failures := make([]error, len(parts))
	var sends sync.WaitGroup
	for partition, part := range parts {
		if len(part) == 0 {
			continue
		}
		where := logOf{info.TopicId, partition}
		identity := *p.identity
		identity.BaseSequence = p.next[where]
		sends.Go(func() {
			failures[partition] = p.send(ctx, topic, where, part, identity)
		})
	}
	sends.Wait()
	for partition, part := range parts {
		if failures[partition] == nil && len(part) > 0 {
			where := logOf{info.TopicId, partition}
			// Wraps from 2**31 - 1 to 0.
			p.next[where] = int32((int64(p.next[where]) + int64(len(part))) & 0x7fffffff)
		}
	}
	p.ended = errors.Join(failures...)
	return p.ended
}

// split puts each record where its key belongs; those without a key go together, anywhere.
func split(records []Record, partitions int, choose func([]byte, int) int) [][]Record {
	parts := make([][]Record, partitions)
	sticky := rand.IntN(partitions)
	for _, record := range records {
		partition := sticky
		if record.Key != nil {
			partition = choose(record.Key, partitions)
		}
		parts[partition] = append(parts[partition], record)
	}
	return parts
}

func (p *Producer) send(
	ctx context.Context, topic string, where logOf, records []Record, identity Identity,
) error {
	batch, err := BuildBatch(records, p.codec, identity)
	if err != nil {
		return err
	}
	return p.client.followLeader(ctx, topic, where.partition,
		func(ctx context.Context, leader pb.BrokerServiceClient, info *pb.PartitionInfo) error {
			answer, err := call(ctx, leader.Produce, &pb.ProduceRequest{
				ClusterId: p.client.cluster(),
				Acks:      pb.Acks_ACKS_ALL,
				TimeoutMs: uint32(attemptTimeout.Milliseconds()),
				Partitions: []*pb.ProducePartition{{
					Topic:       topic,
					TopicId:     where.topicID,
					Partition:   uint32(where.partition),
					LeaderEpoch: info.LeaderEpoch,
					Batch:       batch,
				}},
			})
			if err != nil {
				return err
			}
			if len(answer.Results) != 1 {
				return fmt.Errorf("%d results for one partition", len(answer.Results))
			}
			return fromWire(answer.Results[0].Error)
		})
}

// identify gets a producer id that no other producer has, from any broker.
func (p *Producer) identify(ctx context.Context, topic string) error {
	if p.identity != nil {
		return nil
	}
	return p.client.followLeader(ctx, topic, 0,
		func(ctx context.Context, broker pb.BrokerServiceClient, _ *pb.PartitionInfo) error {
			answer, err := call(ctx, broker.InitProducer,
				&pb.InitProducerRequest{ClusterId: p.client.cluster(), ProducerId: -1})
			if err != nil {
				return err
			}
			if answer.Error != nil {
				return fromWire(answer.Error)
			}
			p.identity = &Identity{answer.ProducerId, answer.ProducerEpoch, 0}
			return nil
		})
}
