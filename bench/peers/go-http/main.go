// go-http serves fixed bodies, an echo, statuses and server-sent events with Go's net/http, over
// HTTP/1.1 and HTTP/2, each with and without TLS.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address and port; port 0: any free one")
	cert := flag.String("cert", "", "certificate, PEM; none: without TLS")
	key := flag.String("key", "", "its key, PEM")
	pace := flag.Duration("pace", 0, "between two events")
	flag.Parse()

	routes := http.NewServeMux()
	routes.HandleFunc("/bytes/{size}", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.PathValue("size"))
		io.WriteString(w, strings.Repeat("x", size))
	})
	routes.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Header().Set("X-Method", r.Method)
		io.Copy(w, r.Body)
	})
	routes.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		http.Error(w, "as asked", code)
	})
	routes.HandleFunc("/sse/{count}", func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(r.PathValue("count"))
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "X-Count")
		for n := range count {
			fmt.Fprintf(w, "id: %d\ndata: {\"n\": %d}\n\n", n, n)
			w.(http.Flusher).Flush()
			time.Sleep(*pace)
		}
		fmt.Fprint(w, "event: done\ndata: {}\n\n")
		w.Header().Set("X-Count", strconv.Itoa(count))
	})

	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr())
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: routes, Protocols: protocols}
	if *cert == "" {
		log.Fatal(server.Serve(listener))
	}
	log.Fatal(server.ServeTLS(listener, *cert, *key))
}
