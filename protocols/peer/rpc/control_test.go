package rpc

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/pace"
)

// frameOf is a frame of a kind with a payload of so many bytes.
func frameOf(kind, flags byte, payload int) []byte {
	b := make([]byte, frameHeaderBytes+payload)
	b[0], b[1], b[2], b[3], b[4] = byte(payload>>16), byte(payload>>8), byte(payload), kind, flags
	for i := range payload {
		b[frameHeaderBytes+i] = 6 // no payload is mistaken for a frame
	}
	return b
}

// TestFramesThatCarryNothingAreCounted, wherever the bytes of a connection are cut.
func TestFramesThatCarryNothingAreCounted(t *testing.T) {
	const settings, reset, ping, continuation = 4, 3, 6, 9
	sent := make([]byte, clientPrefaceText)
	for _, f := range [][]byte{
		frameOf(settings, 0, 6), frameOf(frameHeaders, 4, 40), frameOf(frameData, 0, 300), frameOf(frameData, flagEndStream, 0), frameOf(frameWindowUpdate, 0, 4),
		frameOf(reset, 0, 4), frameOf(ping, 0, 8), frameOf(frameData, 0, 0), frameOf(continuation, 4, 70_000), frameOf(200, 0, 0),
	} {
		sent = append(sent, f...)
	}
	for _, cut := range []int{1, 2, 7, 9, 10, 33, 1000, len(sent)} {
		f, n := newControlFrames(), 0
		for at := 0; at < len(sent); at += cut {
			n += f.count(sent[at:min(at+cut, len(sent))])
		}
		if n != 6 {
			t.Errorf("in pieces of %d bytes: %d frames, want 6", cut, n)
		}
	}
}

// TestAConnectionThatFloodsIsReadSlowly: so that calls which are reset as they begin do not keep the processors from others' rows. Rows are not delayed, nor is an end.
func TestAConnectionThatFloodsIsReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		c := &pacedConn{Conn: server, // frames from the first byte on, without a preface
			bucket: pace.New(controlPerSecond, controlBurst), leave: func() {}, closed: make(chan struct{})}
		read := func(frame []byte, n int) time.Duration {
			began := time.Now()
			go func() {
				for range n {
					_, _ = client.Write(frame)
				}
			}()
			if _, err := io.ReadFull(c, make([]byte, n*len(frame))); err != nil {
				t.Error(err)
			}
			return time.Since(began)
		}
		if took := read(frameOf(3, 0, 4), controlBurst); took > 0 {
			t.Errorf("a burst takes %v", took)
		}
		if took := read(frameOf(3, 0, 4), 5*controlPerSecond); took < 4*time.Second || took > 6*time.Second {
			t.Errorf("five times what a second has takes %v", took)
		}
		if took := read(frameOf(frameData, 0, 1000), 10_000); took > 0 {
			t.Errorf("rows take %v", took)
		}
		go func() {
			_, _ = client.Write(bytes.Repeat(frameOf(3, 0, 4), controlPerSecond)) // a second of waiting
		}()
		go func() {
			time.Sleep(time.Microsecond)
			_ = c.Close()
		}()
		began := time.Now()
		_, _ = io.ReadFull(c, make([]byte, controlPerSecond*(frameHeaderBytes+4)))
		if took := time.Since(began); took > time.Millisecond {
			t.Errorf("an end waits %v", took)
		}
		_ = client.Close()
	})
}
