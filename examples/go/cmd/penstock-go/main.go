// Command penstock-go writes lines to a topic and reads them back.
//
//	penstock-go produce --bootstrap HOST:PORT,… --topic T    standard input, a record per line
//	penstock-go fetch   --bootstrap HOST:PORT,… --topic T    to standard output, until the end
//
// A line is the key, a tab, and the value; without a tab it is a value whose key is null. With
// --json a line is an object as Record has it, bytes in base64, so that nothing is lost.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"penstock.dev/examples/go/penstock"
	pb "penstock.dev/examples/go/penstockv1"
)

const lineBytesMax = 4 << 20

type options struct {
	bootstrap string
	topic     string
	security  penstock.Security
	codec     string
	batch     int
	json      bool
	follow    bool
	timeout   time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "penstock-go:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	commands := map[string]func(context.Context, *penstock.Client, options) error{
		"produce": produce, "fetch": fetch,
	}
	if len(arguments) == 0 || commands[arguments[0]] == nil {
		return errors.New("usage: penstock-go produce|fetch --bootstrap HOST:PORT,… --topic TOPIC")
	}
	var given options
	flags := flag.NewFlagSet("penstock-go "+arguments[0], flag.ExitOnError)
	flags.StringVar(&given.bootstrap, "bootstrap", "localhost:9092", "any brokers, host:port,…")
	flags.StringVar(&given.topic, "topic", "", "the topic; it must exist")
	flags.StringVar(&given.security.CAFile, "ca-file", os.Getenv("PENSTOCK_CA_FILE"), "CA of the cluster, PEM: use TLS")
	flags.StringVar(&given.security.TokenFile, "token-file", os.Getenv("PENSTOCK_TOKEN_FILE"), "a token that says who you are")
	flags.StringVar(&given.security.CertificateFile, "cert", os.Getenv("PENSTOCK_CERTIFICATE_FILE"), "a certificate to show, PEM")
	flags.StringVar(&given.security.KeyFile, "key", os.Getenv("PENSTOCK_KEY_FILE"), "its key, PEM")
	flags.StringVar(&given.codec, "codec", "none", "produce: none or zstd")
	flags.IntVar(&given.batch, "batch", 1000, "produce: records acknowledged together")
	flags.BoolVar(&given.json, "json", false, "lines are JSON, bytes in base64")
	flags.BoolVar(&given.follow, "follow", false, "fetch: wait for more until Ctrl-C")
	flags.DurationVar(&given.timeout, "timeout", time.Minute, "of one batch, all attempts together")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	if given.topic == "" || given.batch < 1 || flags.NArg() > 0 {
		return errors.New("--topic is needed, --batch is at least 1, and nothing follows the options")
	}
	client, err := penstock.NewClient(given.security, strings.Split(given.bootstrap, ",")...)
	if err != nil {
		return err
	}
	defer client.Close()
	return commands[arguments[0]](ctx, client, given)
}

func produce(ctx context.Context, client *penstock.Client, given options) error {
	codec, known := map[string]pb.Codec{"none": pb.Codec_CODEC_NONE, "zstd": pb.Codec_CODEC_ZSTD}[given.codec]
	if !known {
		return fmt.Errorf("--codec is %q; it must be none or zstd", given.codec)
	}
	producer := penstock.NewProducer(client, codec)
	acknowledged := 0
	var waiting []penstock.Record
	flush := func() error {
		if len(waiting) == 0 {
			return nil
		}
		bounded, cancel := context.WithTimeout(ctx, given.timeout)
		defer cancel()
		if err := producer.Produce(bounded, given.topic, waiting); err != nil {
			return fmt.Errorf("%w; %d records were acknowledged before", err, acknowledged)
		}
		acknowledged += len(waiting)
		waiting = waiting[:0]
		return nil
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		record, err := parse(lines.Bytes(), given.json)
		if err != nil {
			return fmt.Errorf("line %d: %w", acknowledged+len(waiting)+1, err)
		}
		if waiting = append(waiting, record); len(waiting) == given.batch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(lines.Err(), flush()); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d records acknowledged\n", acknowledged)
	return nil
}

func parse(line []byte, asJSON bool) (penstock.Record, error) {
	record := penstock.Record{TimestampMs: time.Now().UnixMilli()}
	if asJSON {
		return record, json.Unmarshal(line, &record)
	}
	key, value, found := bytes.Cut(bytes.Clone(line), []byte{'\t'})
	if found {
		record.Key, record.Value = key, value
	} else {
		record.Value = key
	}
	return record, nil
}

func fetch(ctx context.Context, client *penstock.Client, given options) error {
	bounded, cancel := context.WithTimeout(ctx, given.timeout)
	fetcher, err := penstock.NewFetcher(bounded, client, given.topic)
	cancel()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	for given.follow || !fetcher.AtEnd() {
		bounded, cancel := context.WithTimeout(ctx, given.timeout)
		records, err := fetcher.Fetch(bounded)
		cancel()
		for _, record := range records {
			if err := print(out, record, given.json); err != nil {
				return err
			}
		}
		if flushed := out.Flush(); flushed != nil {
			return flushed
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func print(out io.Writer, record penstock.Record, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(record)
	}
	if record.Key != nil {
		if _, err := fmt.Fprintf(out, "%s\t", record.Key); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%s\n", record.Value)
	return err
}
