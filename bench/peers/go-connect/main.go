// go-connect serves one service with connect-go over Connect, gRPC-Web and gRPC, in JSON or binary, over HTTP/1.1
// and HTTP/2 without TLS. Messages are protobuf's own wrappers, so no code has to be generated.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type text = wrapperspb.StringValue

// refused returns the failure that a request asks for by name.
func refused(asked string) error {
	switch asked {
	case "missing":
		return connect.NewError(connect.CodeNotFound, errors.New("no such thing"))
	case "busy":
		return connect.NewError(connect.CodeUnavailable, errors.New("come back later"))
	}
	return nil
}

func say(_ context.Context, request *connect.Request[text]) (*connect.Response[text], error) {
	if err := refused(request.Msg.Value); err != nil {
		return nil, err
	}
	return connect.NewResponse(wrapperspb.String(request.Msg.Value)), nil
}

// repeat sends three messages; a requested failure comes after the first, and `silence` sends none.
func repeat(_ context.Context, request *connect.Request[text], stream *connect.ServerStream[text]) error {
	if request.Msg.Value == "silence" {
		return nil
	}
	for n := range 3 {
		if err := stream.Send(wrapperspb.String(request.Msg.Value)); err != nil {
			return err
		}
		if err := refused(request.Msg.Value); n == 0 && err != nil {
			return err
		}
	}
	return nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address and port; port 0: any free one")
	flag.Parse()

	routes := http.NewServeMux()
	routes.Handle("/echo.Echo/Say", connect.NewUnaryHandler("/echo.Echo/Say", say))
	routes.Handle("/echo.Echo/Repeat", connect.NewServerStreamHandler("/echo.Echo/Repeat", repeat))

	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr())
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: routes, Protocols: protocols}
	log.Fatal(server.Serve(listener))
}
