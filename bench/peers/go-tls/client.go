package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Far longer than any server takes, even on a busy machine.
const patience = 5 * time.Minute

// request is the client's request to a server.
type request struct {
	address, ca, speak, path, version string
	group                             tls.CurveID
	identity                          tls.Certificate
	resume                            bool
}

// carryOut prints a line for each connection: its version, whether the session was resumed, and the
// beginning of the answer.
func (r *request) carryOut() error {
	config, err := r.config()
	if err != nil {
		return err
	}
	if r.speak == "grpc" {
		return r.call(config)
	}
	connections := 1
	if r.resume {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		connections = 2
	}
	for range connections {
		if err := r.converse(config); err != nil {
			return err
		}
	}
	return nil
}

func (r *request) config() (*tls.Config, error) {
	pem, err := os.ReadFile(r.ca)
	if err != nil {
		return nil, fmt.Errorf("-ca: %w", err)
	}
	config := &tls.Config{
		ServerName:       "localhost",
		RootCAs:          x509.NewCertPool(),
		CurvePreferences: []tls.CurveID{r.group},
	}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("-ca %s: no certificate in PEM form", r.ca)
	}
	if r.identity.Certificate != nil {
		config.Certificates = []tls.Certificate{r.identity}
	}
	switch r.version {
	case "1.3":
		config.MinVersion, config.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	case "1.2":
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	default:
		return nil, fmt.Errorf("-version %s: expected 1.3 or 1.2", r.version)
	}
	return config, nil
}

// call makes a call of the score service with grpc-go.
func (r *request) call(config *tls.Config) error {
	connection, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer connection.Close()
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Encoded like the service's own messages.
	score := new(wrapperspb.DoubleValue)
	vector := wrapperspb.String("[0.1, 0.2]")
	if err := connection.Invoke(within, "/score.ScoreService/GetScore", vector, score); err != nil {
		return err
	}
	fmt.Printf("score %v\n", score.Value)
	return nil
}

// converse makes one connection and sends one request on it.
func (r *request) converse(config *tls.Config) error {
	connection, err := tls.Dial("tcp", r.address, config)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	asked := "hello"
	if r.speak == "http" {
		asked = "GET " + r.path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	}
	if _, err := io.WriteString(connection, asked); err != nil {
		return err
	}
	// An echo server does not close the connection, so this client does.
	answer := make([]byte, 5)
	if _, err := io.ReadFull(connection, answer); err != nil {
		return err
	}
	if r.speak == "http" {
		rest, err := io.ReadAll(connection)
		if err != nil {
			return err
		}
		answer = append(answer, rest...)
	} else if string(answer) != asked {
		return errors.New("what came back is not what was sent")
	}
	state := connection.ConnectionState()
	first, _, _ := strings.Cut(string(answer), "\r\n")
	fmt.Printf("%s resumed %t %s\n", tls.VersionName(state.Version), state.DidResume, first)
	return nil
}
