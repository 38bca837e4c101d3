// go-s3 is a third-party in-memory object store with S3's protocol, used as the rendezvous of shards.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address and port; port 0: any free one")
	bucket := flag.String("bucket", "loads", "a bucket that is there")
	flag.Parse()
	store := s3mem.New()
	if err := store.CreateBucket(*bucket); err != nil {
		log.Fatalf("-bucket %s: %v", *bucket, err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatalf("-listen %s: %v", *listen, err)
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	log.Fatal(http.Serve(listener, gofakes3.New(store).Server()))
}
