package rpc

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/budget"
)

// returns counts the buffers that came back.
type returns struct{ n int }

func (r *returns) Get(int) *[]byte { panic("the test has its own") }
func (r *returns) Put(*[]byte)     { r.n++ }

// TestAFrameThatWaitsKeepsNoMoreThanItsBytes: a frame of 100 bytes that waited for the log kept the message that it came in, 128 KiB in a buffer of a MiB, and counted as 356 bytes: a window of 80 MiB
// could have a hundred GiB.
func TestAFrameThatWaitsKeepsNoMoreThanItsBytes(t *testing.T) {
	of := flow{window: 80 << 20, held: new(budget.Held)}
	for _, c := range []struct {
		bytes int
		keeps bool
	}{{100, false}, {20 << 10, false}, {100 << 10, true}} {
		var pool returns
		message := bytes.Repeat([]byte{7}, linkMessageBytes)
		buf := mem.NewBuffer(&message, &pool)
		frame := message[1000:][:c.bytes:c.bytes]
		body := new(link).held(&of, buf, frame, int64(c.bytes)+bodyCost)
		buf.Free() // the message is read
		if kept := pool.n == 0; kept != c.keeps {
			t.Errorf("a frame of %d bytes keeps its message: %v", c.bytes, kept)
		}
		if !c.keeps {
			clear(message)
		}
		if !bytes.Equal(body.Bytes(), bytes.Repeat([]byte{7}, c.bytes)) {
			t.Errorf("a frame of %d bytes has others", c.bytes)
		}
		body.Done()
		if pool.n != 1 {
			t.Errorf("the message of a frame of %d bytes came back %d times", c.bytes, pool.n)
		}
	}
	for _, n := range []int{257, 5 << 10, 40 << 10, linkMessageBytes, linkMessageBytes + linkMessageBytes/4, chunkBytesMax + 1, 600 << 10, 3 << 20, messageBytesMax} {
		buf, _ := poolBuffer(n)
		if p := bufferPool.Get(n); cap(*p) > 4*n {
			t.Errorf("a buffer for %d bytes has %d", n, cap(*p))
		} else {
			bufferPool.Put(p)
		}
		buf.Free()
	}
}
