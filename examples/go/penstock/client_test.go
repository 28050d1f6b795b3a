package penstock

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "penstock.dev/examples/go/penstockv1"
)

// teller is a broker that answers about metadata alone, or does not.
type teller struct {
	pb.UnimplementedBrokerServiceServer
	address string
	asked   int
	at      time.Time
	answer  *pb.MetadataResponse
}

func (t *teller) Metadata(context.Context, *pb.MetadataRequest) (*pb.MetadataResponse, error) {
	t.asked++
	t.at = time.Now()
	if t.answer == nil {
		return nil, status.Error(codes.Unavailable, "silent")
	}
	return t.answer, nil
}

func (t *teller) tells(number int64, topicID string) {
	t.answer = &pb.MetadataResponse{
		ClusterId: "c", ControllerEpoch: 1, MetadataVersion: number,
		Topics: []*pb.TopicInfo{{Topic: "flights", TopicId: topicID}},
	}
}

// tellers are two brokers, the first one asked first, and a client of both.
func tellers(t *testing.T) (first, second *teller, client *Client) {
	t.Helper()
	made := make([]*teller, 2)
	for i := range made {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		made[i] = &teller{address: listener.Addr().String()}
		server := grpc.NewServer()
		pb.RegisterBrokerServiceServer(server, made[i])
		go server.Serve(listener)
		t.Cleanup(server.Stop)
	}
	client, err := NewClient(Security{}, made[0].address, made[1].address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	first, second = made[0], made[1]
	if client.candidates()[0] != first.address {
		first, second = second, first
	}
	return first, second, client
}

func TestWhoAnsweredLastIsAskedFirst(t *testing.T) {
	silent, heard, client := tellers(t)
	heard.tells(1, "a")
	for range 3 {
		if err := client.refresh(t.Context(), "flights"); err != nil {
			t.Fatal(err)
		}
		if client.asked["flights"].Before(heard.at) {
			t.Error("how old the answer is counts from before it was asked for")
		}
	}
	if silent.asked != 1 || heard.asked != 3 {
		t.Errorf("the silent one was asked %d times, the other one %d times", silent.asked, heard.asked)
	}
}

func TestABrokerThatIsBehindTakesNothingBack(t *testing.T) {
	first, second, client := tellers(t)
	for _, told := range []struct {
		number int64
		id     string
	}{{7, "new"}, {6, "old"}} {
		first.tells(told.number, told.id)
		second.tells(told.number, told.id)
		client.asked = map[string]time.Time{}
		info, err := client.Topic(t.Context(), "flights")
		if err != nil || info.TopicId != "new" {
			t.Errorf("version %d: %v, %v", told.number, info, err)
		}
	}
	first.tells(8, "newest")
	client.answered = second.address
	if err := client.refresh(t.Context(), "flights"); err != nil || client.topics["flights"].TopicId != "newest" {
		t.Errorf("the one that is not behind was not asked: %v", err)
	}
}
