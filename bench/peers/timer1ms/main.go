// timer1ms measures how late a generator sends that waits like wrk2: in epoll_wait, whose
// timeout is in whole milliseconds, rounded up. When it wakes, it sends all due calls.
//
// Lateness is the clock just before the send, minus the time when the call was due, as in
// a generator. Prints one JSON object with microseconds.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"runtime"
	"sort"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	rate := flag.Float64("rate", 1000, "calls a second")
	duration := flag.Duration("duration", 5*time.Second, "how long")
	flag.Parse()
	if *rate <= 0 || *duration <= 0 || *duration > time.Minute {
		log.Fatal("timer1ms: -rate must be above 0 and -duration between 0 and 1m")
	}

	// Uses one thread, like an event loop; the garbage collector has no work.
	runtime.LockOSThread()
	epoll, err := syscall.EpollCreate1(0)
	if err != nil {
		log.Fatalf("timer1ms: epoll_create1: %v", err)
	}
	sink, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		log.Fatalf("timer1ms: %v", err)
	}
	message := make([]byte, 160)
	events := make([]syscall.EpollEvent, 8)

	calls := int(*rate * duration.Seconds())
	gap := 1e9 / *rate
	lateness := make([]float64, 0, calls)
	begin := time.Now()
	for next := 0; next < calls; {
		due := time.Duration(float64(next) * gap)
		if wait := due - time.Since(begin); wait > 0 {
			milliseconds := int((wait + time.Millisecond - 1) / time.Millisecond)
			if _, err := syscall.EpollWait(epoll, events, milliseconds); err != nil && err != syscall.EINTR {
				log.Fatalf("timer1ms: epoll_wait: %v", err)
			}
			continue
		}
		lateness = append(lateness, float64(time.Since(begin)-due)/1e3)
		if _, err := sink.Write(message); err != nil {
			log.Fatalf("timer1ms: %v", err)
		}
		next++
	}
	sort.Float64s(lateness)
	at := func(share float64) float64 { return lateness[int(share*float64(len(lateness)-1))] }
	json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"calls": float64(calls), "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1),
	})
}
