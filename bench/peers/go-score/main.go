// go-score answers score.ScoreService/GetScore with grpc-go: the ordinary server that
// the side-by-side benchmarks load.
//
// The messages are the well-known wrappers, whose encoding is the same as the service's
// own: JsonVector{string json = 1} is a StringValue, ScoreResponse{double score = 1} a
// DoubleValue. So no generated code is needed.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type scorer struct{ delay time.Duration }

func (s *scorer) getScore(ctx context.Context, _ *wrapperspb.StringValue) (*wrapperspb.DoubleValue, error) {
	if s.delay > 0 {
		select {
		case <-time.After(s.delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return wrapperspb.Double(0.5), nil
}

var service = grpc.ServiceDesc{
	ServiceName: "score.ScoreService",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "GetScore",
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := new(wrapperspb.StringValue)
			if err := decode(request); err != nil {
				return nil, err
			}
			return srv.(*scorer).getScore(ctx, request)
		},
	}},
	Metadata: "score.proto",
}

func tlsOptions(cert, key, clientCA string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert %s, -tls-key %s: %w", cert, key, err)
	}
	config := &tls.Config{
		Certificates:     []tls.Certificate{pair},
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: []tls.CurveID{tls.X25519},
	}
	if clientCA != "" {
		pem, err := os.ReadFile(clientCA)
		if err != nil {
			return nil, fmt.Errorf("-tls-client-ca: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-tls-client-ca %s: no certificate in PEM form", clientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

func main() {
	log.SetFlags(0)
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	delay := flag.Duration("delay", 0, "wait this long before every answer")
	cert := flag.String("tls-cert", "", "server certificate chain (PEM)")
	key := flag.String("tls-key", "", "its key (PEM)")
	clientCA := flag.String("tls-client-ca", "", "ask clients for a certificate of this CA (PEM)")
	flag.Parse()

	var options []grpc.ServerOption
	if *cert != "" {
		config, err := tlsOptions(*cert, *key, *clientCA)
		if err != nil {
			log.Fatalf("go-score: %v", err)
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatalf("go-score: -listen %s: %v", *listen, err)
	}
	server := grpc.NewServer(options...)
	server.RegisterService(&service, &scorer{delay: *delay})

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() { <-stop; server.Stop() }()

	fmt.Printf("listening on %s\n", listener.Addr())
	if err := server.Serve(listener); err != nil {
		log.Fatalf("go-score: %v", err)
	}
}
