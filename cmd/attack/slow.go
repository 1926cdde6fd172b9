package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// slowConnections is the number of slow clients, and slowMax the memory they may cost beside an idle process.
const (
	slowConnections = 10_000
	slowMax         = 200 << 20
)

func slowAttacks() []attack {
	hold := func(first string) func(context.Context, *attacker) {
		return func(ctx context.Context, a *attacker) { slowClients(ctx, a, a.addr, first) }
	}
	return []attack{
		{name: "slow/silent", does: "10,000 connections that say nothing", run: hold("")},
		{name: "slow/half-a-header", does: "10,000 connections with half a header", run: hold("POST /write?db=default HTTP/1.1\r\nHost: x\r\nX-Half: ")},
		{name: "slow/half-a-body", does: "10,000 connections with half a body", run: hold("POST /write?db=default HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")},
		{name: "slow/after-a-write", does: "10,000 connections that wait after a write", run: hold("POST /write?db=default HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nm value=1\n")},
		{name: "slow/half-after-a-write", does: "10,000 connections with a write and half of the next one", run: hold("POST /write?db=default HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nm value=1\n" +
			"POST /write?db=default HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nm v")},
		{name: "slow/large-bodies", does: "10,000 connections with the first byte of a megabyte", run: hold("POST /write?db=default HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")},
		{name: "slow/chunks", does: "10,000 connections with the first chunk of a body", run: hold("POST /write?db=default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")},
		{name: "slow/readers", does: "large answers that are read a byte at a time", run: slowReaders},
	}
}

// slowClients opens connections to a port from several addresses of this machine, as one has too few ports, and holds them.
func slowClients(ctx context.Context, a *attacker, addr, first string) {
	before := a.rss()
	var opened atomic.Int64
	conns := make([]net.Conn, slowConnections)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < slowConnections && ctx.Err() == nil; i += 16 {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%8))}, Timeout: 5 * time.Second}
				c, err := d.DialContext(ctx, "tcp", addr)
				if err != nil {
					continue
				}
				if _, err := io.WriteString(c, first); err == nil {
					opened.Add(1)
				}
				conns[i] = c
			}
		})
	}
	wg.Wait()
	sleep(ctx, time.Second)
	grown := a.rss() - before
	a.note = fmt.Sprintf("%d open, +%.0f MiB", opened.Load(), float64(grown)/(1<<20))
	if grown > slowMax {
		a.blame(fmt.Sprintf("%d slow connections take %.0f MiB", opened.Load(), float64(grown)/(1<<20)))
	}
	if opened.Load() < slowConnections/2 {
		a.note += " (the system allows no more)"
	}
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// slowReaders ask for answers of megabytes and read them slowly.
func slowReaders(ctx context.Context, a *attacker) {
	a.crowd(ctx)
	ctx, cancel := context.WithTimeout(ctx, max(a.last, 10*time.Second))
	defer cancel()
	readSlowly(ctx, a, "/t/"+crowdTable+"/api/v1/query?query=crowd[1h]", 64)
}

// readSlowly has n clients ask for a path and read a byte of the answer every 10 ms until ctx ends.
func readSlowly(ctx context.Context, a *attacker, path string, n int) {
	request := "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", a.addr)
			if err != nil {
				return
			}
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			_ = c.(*net.TCPConn).SetReadBuffer(4096)
			if _, err := io.WriteString(c, request); err != nil {
				return
			}
			one := make([]byte, 1)
			every(ctx, 10*time.Millisecond, func() { _, _ = c.Read(one) })
		})
	}
	wg.Wait()
}
