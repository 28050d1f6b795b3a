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
	// CertificateFile and KeyFile hold a certificate (PEM) to show, and its key, at the port for users
	// with certificates. They are read for each new connection, so both may be renewed.
	CertificateFile, KeyFile string
}

// options are those of every connection. Files that cannot be used are told at once.
func (s Security) options() ([]grpc.DialOption, error) {
	if (s.CertificateFile == "") != (s.KeyFile == "") {
		return nil, errors.New("a certificate and its key go together: give both files")
	}
	if s.CAFile == "" {
		if s.TokenFile != "" || s.CertificateFile != "" {
			return nil, errors.New("tokens and certificates are shown over TLS only: give the CA file as well")
		}
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	now, err := s.transport()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(rereadFiles{now, s})}
	if s.TokenFile != "" {
		if _, err := readToken(s.TokenFile); err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(tokenFile(s.TokenFile)))
	}
	return options, nil
}

// rereadFiles is TLS with the files as they are when a connection is made.
type rereadFiles struct {
	credentials.TransportCredentials
	files Security
}

func (r rereadFiles) ClientHandshake(
	ctx context.Context, authority string, connection net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	now, err := r.files.transport()
	if err != nil {
		now = r.TransportCredentials // perhaps a file is being written
	}
	return now.Clone().ClientHandshake(ctx, authority, connection)
}

func (r rereadFiles) Clone() credentials.TransportCredentials {
	return rereadFiles{r.TransportCredentials.Clone(), r.files}
}

func (s Security) transport() (credentials.TransportCredentials, error) {
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, fmt.Errorf("the CA file cannot be read: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("the CA file %s holds no certificate (PEM)", s.CAFile)
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if s.CertificateFile != "" {
		shown, err := tls.LoadX509KeyPair(s.CertificateFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("the certificate %s and its key cannot be used: %w", s.CertificateFile, err)
		}
		config.Certificates = []tls.Certificate{shown}
	}
	return credentials.NewTLS(config), nil
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
