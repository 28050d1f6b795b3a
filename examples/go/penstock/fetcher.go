package penstock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "penstock.dev/examples/go/penstockv1"
)

const fetchWait = 500 * time.Millisecond

// Fetcher reads all partitions of a topic from their beginnings, each in order; also those that the
// topic gets later.
type Fetcher struct {
	client  *Client
	topic   *pb.TopicInfo
	offsets []int64
	ends    []int64
}

// NewFetcher finds out where the topic begins, and where it ends now.
func NewFetcher(ctx context.Context, client *Client, topic string) (*Fetcher, error) {
	info, err := client.Topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	f := &Fetcher{client: client, topic: info}
	return f, f.grow(ctx)
}

// grow adds the partitions that the Fetcher does not read yet.
func (f *Fetcher) grow(ctx context.Context) error {
	for partition := len(f.offsets); partition < len(f.topic.Partitions); partition++ {
		start, err := f.listOffset(ctx, partition, &pb.ListOffsetsPartition{
			Spec: &pb.ListOffsetsPartition_Earliest{Earliest: &pb.Earliest{}}})
		if err != nil {
			return err
		}
		end, err := f.listOffset(ctx, partition, &pb.ListOffsetsPartition{
			Spec: &pb.ListOffsetsPartition_Latest{Latest: &pb.Latest{}}})
		if err != nil {
			return err
		}
		f.offsets = append(f.offsets, start)
		f.ends = append(f.ends, end)
	}
	return nil
}

// follow takes over what the topic is now. One that was created again is another topic.
func (f *Fetcher) follow(ctx context.Context) error {
	info, err := f.client.Topic(ctx, f.topic.Topic)
	if err != nil {
		return err
	}
	if info.TopicId != f.topic.TopicId {
		return newError(pb.ErrorCode_ERROR_CODE_TOPIC_ID_MISMATCH,
			fmt.Sprintf("topic %q was created again: it is another topic now", info.Topic))
	}
	f.topic = info
	return f.grow(ctx)
}

// AtEnd says whether all that was there when the Fetcher saw each partition first has been read.
func (f *Fetcher) AtEnd() bool {
	for partition, offset := range f.offsets {
		if offset < f.ends[partition] {
			return false
		}
	}
	return true
}

// Fetch returns the next records of every partition, at once if there are any; none if there are
// none for half a second. A record is returned once. The context bounds all attempts.
//
// The order of partitions is arbitrary. A batch that fails its checks is an error, as is a
// position that retention has passed: nothing is skipped silently.
func (f *Fetcher) Fetch(ctx context.Context) ([]Record, error) {
	if err := f.follow(ctx); err != nil {
		return nil, err
	}
	records, err := f.fetchAll(ctx, 0)
	if len(records) > 0 || err != nil {
		return records, err
	}
	return f.fetchAll(ctx, fetchWait)
}

func (f *Fetcher) fetchAll(ctx context.Context, wait time.Duration) ([]Record, error) {
	perPartition := make([][]Record, len(f.offsets))
	failures := make([]error, len(f.offsets))
	var fetches sync.WaitGroup
	for partition := range f.offsets {
		fetches.Go(func() {
			perPartition[partition], failures[partition] = f.fetchPartition(ctx, partition, wait)
		})
	}
	fetches.Wait()
	var records []Record
	for _, part := range perPartition {
		records = append(records, part...)
	}
	return records, errors.Join(failures...)
}

func (f *Fetcher) fetchPartition(
	ctx context.Context, partition int, wait time.Duration,
) (records []Record, err error) {
	err = f.client.followLeader(ctx, f.topic.Topic, partition,
		func(ctx context.Context, leader pb.BrokerServiceClient, info *pb.PartitionInfo) error {
			answer, err := call(ctx, leader.Fetch, &pb.FetchRequest{
				ClusterId: f.client.cluster(),
				MaxWaitMs: uint32(wait.Milliseconds()),
				MinBytes:  1,
				Partitions: []*pb.FetchPartition{{
					Topic:       f.topic.Topic,
					TopicId:     f.topic.TopicId,
					Partition:   uint32(partition),
					Offset:      f.offsets[partition],
					LeaderEpoch: info.LeaderEpoch,
				}},
			})
			if err != nil {
				return err
			}
			for _, result := range answer.Results {
				if result.Error != nil {
					return fromWire(result.Error)
				}
				opened, err := f.open(partition, result.Batches)
				records = append(records, opened...)
				if err != nil {
					return err
				}
			}
			return nil
		})
	return records, err
}

// open takes batches apart and moves the position behind each.
func (f *Fetcher) open(partition int, batches []*pb.RecordBatch) (records []Record, err error) {
	for _, batch := range batches {
		opened, err := OpenBatch(batch)
		if err != nil {
			return records, fmt.Errorf("%s/%d, batch at offset %d: %w",
				f.topic.Topic, partition, batch.BaseOffset, err)
		}
		for _, record := range opened {
			// Batches come whole: the first may begin before the position.
			if record.Offset >= f.offsets[partition] && batch.Flags&flagControl == 0 {
				record.Partition = partition
				records = append(records, record)
			}
		}
		f.offsets[partition] = batch.BaseOffset + int64(batch.RecordCount)
	}
	return records, nil
}

func (f *Fetcher) listOffset(
	ctx context.Context, partition int, question *pb.ListOffsetsPartition,
) (offset int64, err error) {
	question.Topic, question.TopicId = f.topic.Topic, f.topic.TopicId
	question.Partition = uint32(partition)
	err = f.client.followLeader(ctx, f.topic.Topic, partition,
		func(ctx context.Context, leader pb.BrokerServiceClient, _ *pb.PartitionInfo) error {
			answer, err := call(ctx, leader.ListOffsets, &pb.ListOffsetsRequest{
				ClusterId:  f.client.cluster(),
				Partitions: []*pb.ListOffsetsPartition{question},
			})
			if err != nil {
				return err
			}
			for _, result := range answer.Results {
				offset = result.Offset
				return fromWire(result.Error)
			}
			return errors.New("the answer has no offset")
		})
	return offset, err
}
