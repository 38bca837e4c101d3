// go-tls is Go's own TLS server with answers that end in every way: a peer whose handshakes
// come in small segments, whose certificate chain is as long as it is told, and which asks
// for the key exchange that the client did not guess.
package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"time"
)

// The bytes that every answer promises.
const promised = 4 << 20

// pieces writes so many bytes at once and, when asked, changes one of them.
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
	curve := flag.String("curve", "x25519", "x25519, p256, p384 or x25519mlkem768: the only key exchange there is")
	end := flag.String("end", "whole", "how an answer ends: whole, or in its middle: close_notify, fin, reset or corrupt")
	flag.Parse()

	identity, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatalf("-cert %s -key %s: %v", *cert, *key, err)
	}
	last := identity.Certificate[len(identity.Certificate)-1]
	for range *chain {
		identity.Certificate = append(identity.Certificate, last)
	}
	config := &tls.Config{Certificates: []tls.Certificate{identity}, MinVersion: tls.VersionTLS13}
	curves := map[string]tls.CurveID{
		"x25519":         tls.X25519,
		"p256":           tls.CurveP256,
		"p384":           tls.CurveP384,
		"x25519mlkem768": tls.X25519MLKEM768,
	}
	only, known := curves[*curve]
	if !known {
		log.Fatalf("-curve %s: expected x25519, p256, p384 or x25519mlkem768", *curve)
	}
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
		if err := request(conn); err != nil {
			return
		}
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", promised)
		length := promised
		if end != "whole" {
			length = promised / 2
		}
		if _, err := conn.Write(append([]byte(head), make([]byte, length)...)); err != nil {
			return
		}
		if end == "whole" {
			continue
		}
		// The client waits for more by then.
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
		// It is for the client to go: what it was sent is all there is.
		_, _ = io.Copy(io.Discard, tcp.TCPConn)
		return
	}
}

// request reads up to the empty line.
func request(conn *tls.Conn) error {
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
