package intake

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spillwaydb/spillway/protocols/point"
)

// onePipe listens for one connection of a pipe.
type onePipe chan net.Conn

func (p onePipe) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p onePipe) Close() error { return nil }

func (p onePipe) Addr() net.Addr { return &net.TCPAddr{} }

// overPipe serves one connection without buffers by net/http: the test decides how much of an answer is sent.
func overPipe(t *testing.T, d Deps, test func(f *Front, conn net.Conn, in *bufio.Reader)) {
	synctest.Test(t, func(t *testing.T) {
		served(t, d, test, func(f *Front, conn net.Conn) {
			l := make(onePipe, 1)
			l <- conn
			close(l)
			_ = f.plain.Serve(l)
		})
	})
}

// overFastPipe is overPipe as a listener does it: intake's paths are fasthttp's.
func overFastPipe(t *testing.T, d Deps, test func(f *Front, conn net.Conn, in *bufio.Reader)) {
	var answer fasthttp.ResponseHeader
	_ = answer.Header() // begins the package's clock, which never ends and must not be in a bubble
	synctest.Test(t, func(t *testing.T) { served(t, d, test, (*Front).accepted) })
}

func served(t *testing.T, d Deps, test func(f *Front, conn net.Conn, in *bufio.Reader), serve func(f *Front, conn net.Conn)) {
	f, err := New(d, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	ours, theirs := net.Pipe()
	go func() {
		serve(f, ours)
		close(ended)
	}()
	test(f, theirs, bufio.NewReader(theirs))
	_ = theirs.Close()
	_ = f.plain.Close()
	<-ended
	_ = f.Shutdown(t.Context())
}

// TestAClientThatReadsSlowlyGetsAllOfALargeAnswer: the time to read had to do for the whole of a write, and an answer of megabytes is one.
func TestAClientThatReadsSlowlyGetsAllOfALargeAnswer(t *testing.T) {
	const pieces = 16
	pages := func(w http.ResponseWriter, _ *http.Request) {
		if n, err := w.Write(make([]byte, pieces*patientBytes)); err != nil || n != pieces*patientBytes {
			t.Errorf("%d bytes are written: %v", n, err)
		}
	}
	overPipe(t, Deps{Fallback: http.HandlerFunc(pages)}, func(f *Front, conn net.Conn, in *bufio.Reader) {
		_, err := io.WriteString(conn, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
		answer, readErr := http.ReadResponse(in, nil)
		if err = errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		for i := range pieces {
			time.Sleep(f.settings.BodyTimeMax / 2)
			if _, err := io.CopyN(io.Discard, answer.Body, patientBytes); err != nil {
				t.Fatalf("piece %d: %v", i+1, err)
			}
		}
	})
}

// TestAClientOfFasthttpThatReadsSlowlyGetsAllOfALargeAnswer: an answer to SHOW SERIES had 30 s in all.
func TestAClientOfFasthttpThatReadsSlowlyGetsAllOfALargeAnswer(t *testing.T) {
	const pieces = 16
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := &conn{Conn: ours}
		c.by.Store(int32(serverFast))
		wrote := make(chan error)
		go func() {
			_ = c.SetWriteDeadline(time.Now().Add(writeTimeMax)) // as fasthttp does, once an answer
			body := make([]byte, pieces*patientBytes/4)
			for range 4 {
				if _, err := c.Write(body); err != nil {
					wrote <- err
					return
				}
			}
			_, err := c.Write(body[:patientBytes+1])
			wrote <- err
		}()
		for i := range pieces {
			time.Sleep(writeTimeMax / 2)
			if _, err := io.CopyN(io.Discard, theirs, patientBytes); err != nil {
				t.Fatalf("piece %d: %v", i+1, err)
			}
		}
		if err := <-wrote; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client that stops to read: %v", err)
		}
	})
}

// showsLong is a Writer with one table. The list of its series is longer than the buffers of a server.
type showsLong struct{ Writer }

func (showsLong) Existing(context.Context, string) (Table, error) { return longSeries{}, nil }

type longSeries struct{ Table }

func (longSeries) MetricNames(context.Context, int) ([]string, error) { return nil, nil }

func (longSeries) Series(context.Context, string, int) ([]point.Labels, error) {
	return slices.Repeat([]point.Labels{point.MakeLabels(point.MetricName, "cpu", "host", strings.Repeat("a", 1000))}, 200), nil
}

// TestALongAnswerIsBookedUntilItIsSent: while clients read them slowly, answers of SHOW SERIES lay in no account of memory.
func TestALongAnswerIsBookedUntilItIsSent(t *testing.T) {
	showsSlowly := func(f *Front, conn net.Conn, in *bufio.Reader) {
		_, err := io.WriteString(conn, "GET /query?db=d&q=SHOW+SERIES HTTP/1.1\r\nHost: a\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := f.inFlight.used.Load(); n == 0 {
			t.Error("the answer is not booked while it is written")
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), "cpu,host=a") {
			t.Errorf("%s (%v)", text, err)
		}
		synctest.Wait()
		if n := f.inFlight.used.Load(); n != 0 {
			t.Errorf("%d bytes stay booked", n)
		}
	}
	overPipe(t, Deps{Writer: showsLong{}}, showsSlowly)
	overFastPipe(t, Deps{Writer: showsLong{}}, showsSlowly)
}

// TestAClientThatReadsNoAnswerKeepsNoConnection: those of intake's paths that net/http serves waited for their client without end, and there are 16,384 connections.
func TestAClientThatReadsNoAnswerKeepsNoConnection(t *testing.T) {
	overPipe(t, Deps{}, func(f *Front, conn net.Conn, _ *bufio.Reader) {
		if _, err := io.WriteString(conn, "GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(writeTimeMax + time.Second)
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes of an answer after %v", n, writeTimeMax)
		}
	})
}

// makesTables is a Writer that makes any table.
type makesTables struct{ Writer }

func (makesTables) Create(context.Context, string, *time.Duration) error { return nil }

// TestATableThatWasMadeIsNotAnsweredWithAnError: an answer of nothing was booked too, which failed while the budget of bodies was exceeded.
func TestATableThatWasMadeIsNotAnsweredWithAnError(t *testing.T) {
	overPipe(t, Deps{Writer: makesTables{}}, func(f *Front, conn net.Conn, in *bufio.Reader) {
		f.inFlight.add("other", 2*f.inFlight.max)
		defer f.inFlight.add("other", -2*f.inFlight.max)
		_, err := io.WriteString(conn, "GET /query?q=CREATE+DATABASE+d HTTP/1.1\r\nHost: a\r\n\r\n")
		answer, readErr := http.ReadResponse(in, nil)
		if err = errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(answer.Body); err != nil || string(text) != `{"results":[{"statement_id":0}]}`+"\n" {
			t.Errorf("%s (%v)", text, err)
		}
	})
}
