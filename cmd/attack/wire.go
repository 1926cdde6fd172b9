package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

func wireAttacks() []attack {
	return []attack{
		{name: "wire/smuggling", does: "requests that two readers would cut at different places", run: smuggling},
		{name: "wire/garbage", does: "bytes that are no HTTP, huge headers and paths", run: garbage},
		{name: "wire/tenants", does: "contradicting names of the table in one request, to reach the bystander's rows", run: tenants},
		{name: "wire/declared", does: "bodies that are declared with gigabytes and never come", run: declared},
	}
}

// exchange sends raw bytes over a new connection and returns the bytes received until the server closes, falls
// silent, or ctx ends.
func (a *attacker) exchange(ctx context.Context, request string) string {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", a.addr)
	if err != nil {
		a.count(0)
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		a.count(0)
		return ""
	}
	answer, _ := io.ReadAll(io.LimitReader(c, 1<<20)) // a deadline ends it: the bytes received so far count
	status := 0
	_, _ = fmt.Sscanf(string(answer), "HTTP/1.1 %d", &status)
	a.count(status)
	if status != 0 && !tolerable(status) {
		a.blame(fmt.Sprintf("%.80q: %.200s", request, answer))
	}
	return string(answer)
}

// smuggling hides a write to the table "smuggled" in bytes that one reader treats as a body. No reader of the connection may execute it.
func smuggling(ctx context.Context, a *attacker) {
	hidden := "POST /write?db=smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\nhid value=1\n"
	head := "POST /write?db=default HTTP/1.1\r\nHost: x\r\n"
	chunked := "0\r\n\r\n" + hidden
	requests := []string{
		head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s", len(chunked), chunked),
		head + fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%s", len(chunked), chunked),
		head + fmt.Sprintf("Transfer-Encoding: identity\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden),
		head + fmt.Sprintf("Transfer-Encoding : chunked\r\nContent-Length: %d\r\n\r\n%s", len(chunked), chunked),
		head + fmt.Sprintf("Transfer-Encoding: xchunked\r\nContent-Length: %d\r\n\r\n%s", len(chunked), chunked),
		head + fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden),
		head + fmt.Sprintf("Content-Length: +%d\r\n\r\n%s", len(hidden), hidden),
		head + fmt.Sprintf("Content-Length: %d, 0\r\n\r\n%s", len(hidden), hidden),
		head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x;\n\r\n%s", len(hidden), hidden) + "\r\n0\r\n\r\n",
		"GET /api/v1/query?query=1 HTTP/1.1\r\nHost: x\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(hidden), hidden),
	}
	a.workers(ctx, 4, func(ctx context.Context, w, turn int) bool {
		a.exchange(ctx, requests[(4*turn+w)%len(requests)])
		return 4*turn < len(requests)
	})
	status, answer, err := a.ask(ctx, http.MethodGet, "/t/smuggled/api/v1/query?query=hid", nil, nil)
	if v, _ := firstValue(answer); err == nil && status == http.StatusOK && v >= 0 {
		a.blame(fmt.Sprintf("a write that was hidden in another request's body was done: %.200s", answer))
	}
}

func garbage(ctx context.Context, a *attacker) {
	requests := []string{
		strings.Repeat("\x00", 1<<20), "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00\x00\x00\x04\x01\x00\x00\x00\x00", 10_000),
		"GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-Many: header\r\n", 100_000) + "\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 4<<20) + "\r\n\r\n",
		"GET /" + strings.Repeat("a/../", 1<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /write?db=" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
		strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 10_000),
		"GET / HTTP/0.9\r\n\r\n", "BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\r\n\r\n\r\n", "GET http://[::1 HTTP/1.1\r\n\r\n",
		"POST /write?db=default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
		"POST /write?db=default HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("e", 1000)+"\r\na\r\n", 5000),
	}
	a.workers(ctx, 16, func(ctx context.Context, w, turn int) bool {
		a.exchange(ctx, requests[(w+turn)%len(requests)])
		return true
	})
}

// tenants names two tables in one request. Only the bystander's own rows count: those must not be answered, nor written to.
func tenants(ctx context.Context, a *attacker) {
	own := "mine"
	a.post(ctx, "/write?db="+own, nil, []byte("mine value=1\n"))
	read := func(what, path string, header http.Header) {
		status, answer := a.send(ctx, http.MethodGet, path, header, nil)
		if status == http.StatusOK && strings.Contains(string(answer), "steady") {
			a.blame(fmt.Sprintf("%s reads the bystander's rows: %.200s", what, answer))
		}
		if status == http.StatusOK {
			a.blame(what + ": a request that names two tables is answered 200")
		}
	}
	const query = "/api/v1/query?query=count(steady)"
	mine := http.Header{"X-Scope-Orgid": {own}}
	read("a path beside a header", "/t/"+bystanderTable+query, mine)
	read("a path beside another header", "/t/"+bystanderTable+query, http.Header{"X-Spillway-Table": {own}})
	read("two equal headers", query, http.Header{"X-Scope-Orgid": {own, bystanderTable}})
	read("two different headers", query, http.Header{"X-Scope-Orgid": {own}, "X-Spillway-Table": {bystanderTable}})
	for _, path := range []string{"/write?db=" + bystanderTable, "/write?db=" + own + "&db=" + bystanderTable, "/api/v2/write?bucket=" + bystanderTable, "/t/" + bystanderTable + "/api/v1/write"} {
		if status, _ := a.post(ctx, path, mine, []byte("steady,i=stolen value=1\n")); status/100 == 2 {
			a.blame("a write that names two tables is taken: " + path)
		}
	}
}

// declared opens connections that promise 30 MB each and send one byte.
func declared(ctx context.Context, a *attacker) {
	ctx, cancel := context.WithTimeout(ctx, a.last)
	defer cancel()
	for range 500 {
		go func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", a.addr)
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Encoding: snappy\r\nContent-Type: application/x-protobuf\r\nContent-Length: 31000000\r\n\r\nx")
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			_, _ = bufio.NewReader(c).ReadByte()
		}()
	}
	<-ctx.Done()
}
