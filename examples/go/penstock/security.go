package penstock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const maxTokenBytes = 7 << 10 // brokers refuse longer ones

// Security says whom a client trusts, and what it shows. Without a CA file all is plaintext.
//
// In a pod, both files usually lie in /var/run/secrets/penstock.dev: ca.crt and token.
type Security struct {
	// CAFile holds the certificates (PEM) of the CAs that may have signed brokers' certificates.
	// It is read for each new connection, so a CA can change while the program runs.
	CAFile string
	// TokenFile holds a token and nothing else. It is read for each call: whoever renews the token,
	// such as the kubelet, just writes the file.
	TokenFile string
}

// options are those of every connection. Files that cannot be used are told at once.
func (s Security) options() ([]grpc.DialOption, error) {
	if s.CAFile == "" {
		if s.TokenFile != "" {
			return nil, errors.New("a token is sent over TLS only: give the CA file as well")
		}
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	now, err := trusting(s.CAFile)
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(rereadCA{now, s.CAFile})}
	if s.TokenFile != "" {
		if _, err := readToken(s.TokenFile); err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(tokenFile(s.TokenFile)))
	}
	return options, nil
}

// rereadCA is TLS with the CA file as it is when a connection is made.
type rereadCA struct {
	credentials.TransportCredentials
	path string
}

func (r rereadCA) ClientHandshake(
	ctx context.Context, authority string, connection net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	now, err := trusting(r.path)
	if err != nil {
		now = r.TransportCredentials // perhaps the file is being written
	}
	return now.Clone().ClientHandshake(ctx, authority, connection)
}

func (r rereadCA) Clone() credentials.TransportCredentials {
	return rereadCA{r.TransportCredentials.Clone(), r.path}
}

func trusting(path string) (credentials.TransportCredentials, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the CA file cannot be read: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("the CA file %s holds no certificate (PEM)", path)
	}
	return credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}), nil
}

// tokenFile shows the token in the file of this name. gRPC never sends it in plaintext.
type tokenFile string

func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := readToken(string(f))
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (tokenFile) RequireTransportSecurity() bool { return true }

// readToken never repeats the content in an error.
func readToken(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("the token file cannot be read: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" || len(token) > maxTokenBytes || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf(
			"the token file %s must hold one token of at most %d bytes, and nothing else", path, maxTokenBytes)
	}
	return token, nil
}
