package penstock

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	pb "penstock.dev/examples/go/penstockv1"
)

const (
	attemptTimeout  = 5 * time.Second
	retryPause      = 100 * time.Millisecond
	metadataMaxAge  = 5 * time.Second // how late a new partition may be noticed
	maxMessageBytes = 64 << 20        // a fetch answer of 50 MiB and its framing
)

var errBehind error = &Error{
	Detail:  &pb.Error{Code: pb.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT, Message: "who answers is behind"},
	Silence: true,
}

// Client knows who leads what, and has a connection to each broker. Safe for concurrent use.
type Client struct {
	bootstrap []string
	security  []grpc.DialOption

	mu          sync.Mutex
	clusterID   string
	addresses   map[int32]string
	topics      map[string]*pb.TopicInfo
	versions    map[string]version
	asked       map[string]time.Time
	answered    string // the address that told metadata last
	connections map[string]*grpc.ClientConn
}

// version is how new metadata is.
type version struct{ controllerEpoch, number int64 }

func versionOf(answer *pb.MetadataResponse) version {
	return version{answer.ControllerEpoch, answer.MetadataVersion}
}

func (v version) before(other version) bool {
	if v.controllerEpoch != other.controllerEpoch {
		return v.controllerEpoch < other.controllerEpoch
	}
	return v.number < other.number
}

// NewClient takes the addresses of any brokers, as host:port. It connects on first use. Its error is
// about the files in security.
func NewClient(security Security, bootstrap ...string) (*Client, error) {
	options, err := security.options()
	if err != nil {
		return nil, err
	}
	return &Client{
		bootstrap:   bootstrap,
		security:    options,
		addresses:   map[int32]string{},
		topics:      map[string]*pb.TopicInfo{},
		versions:    map[string]version{},
		asked:       map[string]time.Time{},
		connections: map[string]*grpc.ClientConn{},
	}, nil
}

// Close ends all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, connection := range c.connections {
		connection.Close()
	}
	c.connections = map[string]*grpc.ClientConn{}
}

// Topic describes a topic as it was last seen. It asks if that was too long ago, because a topic may
// get more partitions; if nobody answers, what is known still counts.
func (c *Client) Topic(ctx context.Context, name string) (*pb.TopicInfo, error) {
	known, fresh := c.known(name)
	if known == nil {
		err := c.retry(ctx, func() error { return c.refresh(ctx, name) })
		known, _ = c.known(name)
		return known, err
	}
	if !fresh {
		if err := c.refresh(ctx, name); err != nil && !retriable(err) {
			return nil, err
		}
		known, _ = c.known(name)
	}
	return known, nil
}

func (c *Client) known(topic string) (info *pb.TopicInfo, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topics[topic], time.Since(c.asked[topic]) < metadataMaxAge
}

// retry repeats a step while its error is retriable and the context lasts.
func (c *Client) retry(ctx context.Context, step func() error) error {
	for {
		err := step()
		if err == nil || !retriable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(retryPause):
		}
	}
}

// refresh asks one broker after the other about a topic, until one answers that is not behind. The
// answer counts from its end, because a frozen broker takes its time; meanwhile nobody else asks.
func (c *Client) refresh(ctx context.Context, topic string) error {
	err := error(newError(pb.ErrorCode_ERROR_CODE_INVALID_REQUEST, "no bootstrap address was given"))
	c.asks(topic)
	defer c.asks(topic)
	for _, address := range c.candidates() {
		var answer *pb.MetadataResponse
		answer, err = c.metadata(ctx, address, topic)
		if err == nil {
			err = c.learn(answer, topic, address)
			if err != errBehind {
				return err
			}
		} else if !retriable(err) {
			return err
		}
	}
	return fmt.Errorf("nobody says where topic %q is: %w", topic, err)
}

func (c *Client) asks(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[topic] = time.Now()
}

func (c *Client) metadata(
	ctx context.Context, address, topic string,
) (*pb.MetadataResponse, error) {
	broker, err := c.broker(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return call(ctx, broker.Metadata, &pb.MetadataRequest{
		ClusterId: c.cluster(), Topics: []string{topic},
	})
}

// learn takes over an answer. A broker may be behind: nothing goes back to what was before.
func (c *Client) learn(answer *pb.MetadataResponse, name, address string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if versionOf(answer).before(c.versions[name]) {
		return errBehind
	}
	c.answered = address
	c.clusterID = answer.ClusterId
	for _, broker := range answer.Brokers {
		c.addresses[broker.BrokerId] = net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))
	}
	for _, topic := range answer.Topics {
		if topic.Topic != name {
			continue
		}
		if topic.Error != nil {
			return fromWire(topic.Error)
		}
		c.topics[name], c.versions[name] = topic, versionOf(answer)
		return nil
	}
	return newError(pb.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC, fmt.Sprintf("topic %q does not exist", name))
}

// leader is who leads a partition, as far as known.
func (c *Client) leader(topic string, partition int) (pb.BrokerServiceClient, *pb.PartitionInfo, error) {
	c.mu.Lock()
	partitions := c.topics[topic].Partitions
	if partition >= len(partitions) {
		c.mu.Unlock()
		return nil, nil, newError(pb.ErrorCode_ERROR_CODE_UNKNOWN_PARTITION,
			fmt.Sprintf("%s/%d does not exist: the topic was created again", topic, partition))
	}
	info := partitions[partition]
	address := c.addresses[info.Leader]
	c.mu.Unlock()
	if address == "" {
		return nil, nil, newError(pb.ErrorCode_ERROR_CODE_LEADER_NOT_AVAILABLE,
			fmt.Sprintf("%s/%d has no leader at the moment", topic, partition))
	}
	broker, err := c.broker(address)
	return broker, info, err
}

// followLeader calls a partition's leader, and the next one if that is gone or says it is not.
func (c *Client) followLeader(
	ctx context.Context, topic string, partition int,
	ask func(context.Context, pb.BrokerServiceClient, *pb.PartitionInfo) error,
) error {
	return c.retry(ctx, func() error {
		leader, info, err := c.leader(topic, partition)
		if err == nil {
			attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
			err = ask(attempt, leader, info)
			cancel()
		}
		if retriable(err) {
			// Whatever it was, ask who leads now. That this fails as well is the next attempt's news.
			_ = c.refresh(ctx, topic)
		}
		return err
	})
}

// candidates are the addresses to ask for metadata: of the broker that answered last, then the others.
func (c *Client) candidates() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	addresses := slices.Concat(slices.Collect(maps.Values(c.addresses)), c.bootstrap)
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	if at := slices.Index(addresses, c.answered); at > 0 {
		addresses = slices.Insert(slices.Delete(addresses, at, at+1), 0, c.answered)
	}
	return addresses
}

func (c *Client) cluster() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clusterID
}

func (c *Client) broker(address string) (pb.BrokerServiceClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	connection := c.connections[address]
	if connection == nil {
		var err error
		connection, err = grpc.NewClient(address, append(slices.Clone(c.security),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
			// A restarted broker is back within a second: do not wait out gRPC's default.
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second,
			}, MinConnectTimeout: 2 * time.Second}))...)
		if err != nil {
			return nil, err
		}
		c.connections[address] = connection
	}
	return pb.NewBrokerServiceClient(connection), nil
}
