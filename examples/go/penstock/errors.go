package penstock

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	pb "penstock.dev/examples/go/penstockv1"
)

// Error is what a broker said, or that it said nothing.
type Error struct {
	Detail *pb.Error
	// Silence: no answer came, so nobody knows whether the call had an effect.
	Silence bool
}

func (e *Error) Error() string { return e.Detail.Message }

// Retriable: the same call may succeed later, unchanged. The protocol says so for each code.
func (e *Error) Retriable() bool { return e.Silence || traits(e.Detail.Code).GetRetriable() }

func newError(code pb.ErrorCode, message string) *Error {
	return &Error{Detail: &pb.Error{Code: code, Message: message}}
}

func fromWire(detail *pb.Error) error {
	if detail == nil {
		return nil
	}
	return &Error{Detail: detail, Silence: detail.Code == pb.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT}
}

// traits reads the options that errors.proto has at every code.
func traits(code pb.ErrorCode) *pb.ErrorTraits {
	value := code.Descriptor().Values().ByNumber(code.Number())
	if value == nil { // a newer broker's code
		return nil
	}
	options, _ := value.Options().(*descriptorpb.EnumValueOptions)
	found, _ := proto.GetExtension(options, pb.E_Traits).(*pb.ErrorTraits)
	return found
}

func retriable(err error) bool {
	var known *Error
	return errors.As(err, &known) && known.Retriable()
}

// call makes one unary call and turns its failure into an Error.
func call[Request, Answer any](
	ctx context.Context,
	method func(context.Context, Request, ...grpc.CallOption) (Answer, error),
	request Request,
) (Answer, error) {
	var trailer metadata.MD
	answer, err := method(ctx, request, grpc.Trailer(&trailer))
	if err == nil {
		return answer, nil
	}
	if said := trailer.Get("penstock-error-bin"); len(said) > 0 {
		detail := &pb.Error{}
		if proto.Unmarshal([]byte(said[0]), detail) == nil {
			return answer, fromWire(detail)
		}
	}
	message := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		failed := newError(pb.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT, message)
		failed.Silence = true
		return answer, failed
	case codes.ResourceExhausted:
		return answer, newError(pb.ErrorCode_ERROR_CODE_OVERLOADED, message)
	}
	return answer, newError(pb.ErrorCode_ERROR_CODE_UNSPECIFIED, message)
}
