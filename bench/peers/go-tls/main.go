// go-tls is a server on Go's TLS: it can send handshakes in small segments, use long certificate
// chains, request a key exchange that the client did not offer a share for, and end answers in
// every way. With -connect it is a client instead, and with -groups it prints the key exchanges
// that this version of Go supports.
package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
)

// The number of bytes that every answer announces.
const promised = 4 << 20

// The key exchanges of all supported versions of Go; newer versions add theirs.
var curves = map[string]tls.CurveID{
	"x25519":         tls.X25519,
	"p256":           tls.CurveP256,
	"p384":           tls.CurveP384,
	"x25519mlkem768": tls.X25519MLKEM768,
}

// pieces writes a limited number of bytes at once and can change one of them.
type pieces struct {
	*net.TCPConn
	size    int
	corrupt bool
}

func (p *pieces) Write(all []byte) (int, error) {
	if p.corrupt {
		all = bytes.Clone(all)
		all[len(all)-1] ^= 1
	}
	written := 0
	for written < len(all) {
		end := len(all)
		if p.size > 0 {
			end = min(end, written+p.size)
		}
		n, err := p.TCPConn.Write(all[written:end])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address and port; port 0: any free one")
	cert := flag.String("cert", "", "certificate, PEM")
	key := flag.String("key", "", "its key, PEM")
	chain := flag.Int("chain", 0, "send the last certificate so many times more")
	size := flag.Int("pieces", 0, "bytes of a write; 0: any")
	curve := flag.String("curve", "x25519", "the only key exchange there is: one that -groups prints")
	groups := flag.Bool("groups", false, "print the key exchanges that this Go knows, and end")
	connect := flag.String("connect", "", "be a client of this server")
	asked := request{}
	flag.StringVar(&asked.ca, "ca", "", "as a client: the CA of the server, PEM")
	flag.StringVar(&asked.speak, "speak", "http", "as a client: http, grpc or echo")
	flag.StringVar(&asked.path, "path", "/", "as a client: what is requested over HTTP")
	flag.StringVar(&asked.version, "version", "1.3", "as a client: the only version of TLS, 1.3 or 1.2")
	flag.BoolVar(&asked.resume, "resume", false, "as a client: connect once more, and resume the session")
	end := flag.String("end", "whole", "how an answer ends: whole, or in its middle: close_notify, fin, reset or corrupt")
	flag.Parse()

	if *groups {
		for _, name := range slices.Sorted(maps.Keys(curves)) {
			fmt.Println(name)
		}
		return
	}
	only, known := curves[strings.ToLower(*curve)]
	if !known {
		log.Fatalf("-curve %s: -groups prints those that this Go knows", *curve)
	}
	var identity tls.Certificate
	if *cert != "" || *connect == "" {
		var err error
		identity, err = tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			log.Fatalf("-cert %s -key %s: %v", *cert, *key, err)
		}
	}
	if *connect != "" {
		asked.address, asked.group, asked.identity = *connect, only, identity
		if err := asked.carryOut(); err != nil {
			log.Fatalf("-connect %s: %v", *connect, err)
		}
		return
	}
	last := identity.Certificate[len(identity.Certificate)-1]
	for range *chain {
		identity.Certificate = append(identity.Certificate, last)
	}
	config := &tls.Config{Certificates: []tls.Certificate{identity}, MinVersion: tls.VersionTLS13}
	config.CurvePreferences = []tls.CurveID{only}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatalf("-listen %s: %v", *listen, err)
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	for {
		accepted, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		tcp := &pieces{TCPConn: accepted.(*net.TCPConn), size: *size}
		go serve(tcp, tls.Server(tcp, config), *end)
	}
}

func serve(tcp *pieces, conn *tls.Conn, end string) {
	defer tcp.Close()
	for {
		if err := head(conn); err != nil {
			return
		}
		answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", promised)
		length := promised
		if end != "whole" {
			length = promised / 2
		}
		if _, err := conn.Write(append([]byte(answer), make([]byte, length)...)); err != nil {
			return
		}
		if end == "whole" {
			continue
		}
		// By now the client is waiting for more.
		time.Sleep(200 * time.Millisecond)
		switch end {
		case "close_notify":
			_ = conn.CloseWrite()
		case "fin":
			_ = tcp.CloseWrite()
		case "reset":
			_ = tcp.SetLinger(0)
			return
		case "corrupt":
			tcp.corrupt = true
			_, _ = conn.Write([]byte("xxxx"))
		default:
			log.Fatalf("-end %s: unknown", end)
		}
		// The client must close the connection: it has received everything.
		_, _ = io.Copy(io.Discard, tcp.TCPConn)
		return
	}
}

// head reads a request up to its empty line.
func head(conn *tls.Conn) error {
	var all []byte
	buffer := make([]byte, 4096)
	for !bytes.HasSuffix(all, []byte("\r\n\r\n")) {
		n, err := conn.Read(buffer)
		all = append(all, buffer[:n]...)
		if err != nil {
			return err
		}
		if len(all) > 1<<16 {
			return errors.New("a request without end")
		}
	}
	return nil
}
