// recorder is a gRPC server that records when each request arrived, to show how evenly a
// generator sends. It parses HTTP/2 frames itself, so that the time stamp is taken right
// after the read; every request is answered at once with an empty message.
//
// On SIGTERM it prints one JSON object: the number of requests, and the variance and mean
// of arrivals per millisecond. Variance over mean is 0 for a perfectly even stream, 1 for a
// Poisson process, and more for bursts.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const most = 10_000_000 // arrivals kept; later ones are answered only

type record struct {
	mu    sync.Mutex
	begin time.Time
	at    []time.Duration
}

func (r *record) arrival(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) < most {
		r.at = append(r.at, at.Sub(r.begin))
	}
}

// stampingReader records when the bytes that are being parsed were read from the socket.
type stampingReader struct {
	conn net.Conn
	last time.Time
}

func (s *stampingReader) Read(p []byte) (int, error) {
	n, err := s.conn.Read(p)
	s.last = time.Now()
	return n, err
}

func serve(conn net.Conn, rec *record) error {
	defer conn.Close()
	stamped := &stampingReader{conn: conn}
	in := bufio.NewReaderSize(stamped, 64<<10)
	out := bufio.NewWriterSize(conn, 64<<10)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(in, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return errors.New("not an HTTP/2 client")
	}
	framer := http2.NewFramer(out, in)
	framer.SetMaxReadFrameSize(1 << 20)

	// Literal fields without indexing: the blocks are the same whatever the peer's table is.
	block := func(fields ...[2]string) []byte {
		var b bytes.Buffer
		encoder := hpack.NewEncoder(&b)
		for _, f := range fields {
			encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
		}
		return b.Bytes()
	}
	head := block([2]string{":status", "200"}, [2]string{"content-type", "application/grpc"})
	tail := block([2]string{"grpc-status", "0"})
	empty := make([]byte, 5)

	framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1 << 20})
	framer.WriteWindowUpdate(0, 1<<30)
	for {
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		ended := false
		switch f := frame.(type) {
		case *http2.HeadersFrame:
			rec.arrival(stamped.last)
			ended = f.StreamEnded()
		case *http2.DataFrame:
			ended = f.StreamEnded()
			if f.Length > 0 {
				framer.WriteWindowUpdate(0, f.Length)
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				framer.WritePing(true, f.Data)
			}
		case *http2.GoAwayFrame:
			return out.Flush()
		}
		if ended {
			id := frame.Header().StreamID
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true})
			framer.WriteData(id, false, empty)
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: tail, EndHeaders: true, EndStream: true})
		}
	}
}

// spread ignores the first and last tenth of the time, in which the load starts and stops.
func (r *record) spread() map[string]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) < 100 {
		return map[string]float64{"requests": float64(len(r.at))}
	}
	first, last := r.at[0], r.at[0]
	for _, at := range r.at {
		first, last = min(first, at), max(last, at)
	}
	margin := (last - first) / 10
	from := first + margin
	count := int((last - margin - from) / time.Millisecond)
	if count < 2 {
		return map[string]float64{"requests": float64(len(r.at))}
	}
	perMillisecond := make([]float64, count)
	for _, at := range r.at {
		if at >= from {
			if bin := int((at - from) / time.Millisecond); bin < count {
				perMillisecond[bin]++
			}
		}
	}
	sum, squares := 0.0, 0.0
	for _, n := range perMillisecond {
		sum += n
		squares += n * n
	}
	mean := sum / float64(count)
	variance := squares/float64(count) - mean*mean
	return map[string]float64{
		"requests": float64(len(r.at)), "milliseconds": float64(count), "mean": mean,
		"variance": variance, "variance_over_mean": variance / mean,
	}
}

func main() {
	log.SetFlags(0)
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatalf("recorder: -listen %s: %v", *listen, err)
	}
	rec := &record{begin: time.Now(), at: make([]time.Duration, 0, 1<<20)}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		json.NewEncoder(os.Stdout).Encode(rec.spread())
		os.Exit(0)
	}()
	fmt.Printf("listening on %s\n", listener.Addr())
	for {
		conn, err := listener.Accept()
		if err != nil {
			log.Fatalf("recorder: %v", err)
		}
		go func() {
			if err := serve(conn, rec); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				log.Printf("recorder: %v: %v", conn.RemoteAddr(), err)
			}
		}()
	}
}
