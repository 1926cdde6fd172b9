package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// Attacks against the port at which a storage server answers gateways and other servers; gateways have none. The bystander writes and reads through the
// gateway of the same cluster. The storage server's memory is judged, and not the gateway's.

// peerPort is how a group's cluster speaks between its processes.
type peerPort uint8

const (
	noPeers     peerPort = iota
	securePeers          // by TLS, with certificates on both sides
	plainPeers           // in the clear, as --dev.insecure-peers has it
)

func peerAttacks() []attack {
	var all []attack
	add := func(port peerPort, group, name, does string, run func(context.Context, *attacker)) {
		all = append(all, attack{name: group + "/" + name, does: does, run: run, peers: port, asked: true})
	}
	hold := func(first []byte) func(context.Context, *attacker) {
		return func(ctx context.Context, a *attacker) { slowClients(ctx, a, a.peer, string(first)) }
	}
	add(securePeers, "peers", "silent", "10,000 connections that say nothing", besideNewPeers(hold(nil)))
	add(securePeers, "peers", "half-a-handshake", "10,000 connections that end their handshake after the ClientHello", besideNewPeers(hold(clientHello())))
	for _, of := range []struct {
		port  peerPort
		group string
	}{{securePeers, "peers"}, {plainPeers, "plainpeers"}} {
		add(of.port, of.group, "settings", "SETTINGS frames, as many as go, whose acks are not read", besideNewPeers(frames(settingsFrame)))
		add(of.port, of.group, "pings", "PING frames, as many as go, whose answers are not read", besideNewPeers(frames(pingFrame)))
		add(of.port, of.group, "resets", "calls that are reset as soon as they begin", besideNewPeers(frames(resetCall)))
		add(of.port, of.group, "continuations", "a header that goes on for ever", besideNewPeers(frames(endlessHeader)))
	}
	add(plainPeers, "plainpeers", "silent", "10,000 connections that say nothing", besideNewPeers(hold(nil)))
	add(plainPeers, "plainpeers", "preface", "10,000 connections that begin HTTP/2 and say nothing more", besideNewPeers(hold([]byte(http2Preface))))
	return all
}

// startPeers starts a cluster of one storage server, which is the target's process, and a gateway, at which its requests go.
func startPeers(ctx context.Context, o options, port peerPort) (*target, error) {
	t, c, err := startProcesses(ctx, o, processes.Plan{Storage: 1, Gateways: 1, Certs: port == securePeers})
	if err != nil {
		return nil, err
	}
	t.p, t.addr, t.peer = c.Storage[0], c.HTTP[0], c.Peers[0]
	if port == securePeers {
		certs := filepath.Join(t.dir, "certs")
		shown, err := tls.LoadX509KeyPair(filepath.Join(certs, "g1.crt"), filepath.Join(certs, "g1.key"))
		if err != nil {
			t.end()
			return nil, err
		}
		t.shown = &tls.Config{Certificates: []tls.Certificate{shown}, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	}
	return t, nil
}

// dialPeer opens a connection to the storage server, as a peer does.
func (t *target) dialPeer(ctx context.Context, from byte) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}, Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", t.peer)
	if err != nil || t.shown == nil {
		return c, err
	}
	secured := tls.Client(c, t.shown)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return secured, nil
}

// newPeerMax bounds how long another peer's connection may last to its first answer, where latency is judged; elsewhere it has the time that health has.
const newPeerMax = 2 * time.Second

func (o options) newPeerMost() time.Duration {
	if o.latency {
		return newPeerMax
	}
	return healthBusy
}

// besideNewPeers runs an attack, and beside it has another peer connect again and again and wait for the server's SETTINGS.
func besideNewPeers(run func(context.Context, *attacker)) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		var others sync.WaitGroup
		beside, stop := context.WithCancel(ctx)
		n, slowest := 0, time.Duration(0)
		others.Go(func() {
			for beside.Err() == nil {
				began := time.Now()
				if err := a.greetPeer(beside, a.newPeerMost); err != nil && beside.Err() == nil {
					a.blame(fmt.Sprintf("another peer connects: after %s: %v", time.Since(began).Round(time.Millisecond), err))
				} else if err == nil {
					n, slowest = n+1, max(slowest, time.Since(began))
				}
				sleep(beside, 50*time.Millisecond)
			}
		})
		run(ctx, a)
		stop()
		others.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.note = strings.TrimSpace(fmt.Sprintf("%s, %d connections of another peer, the slowest %s", a.note, n, strings.TrimSpace(ms(slowest))))
	}
}

// greetPeer connects, begins HTTP/2 and reads the first frame.
func (t *target) greetPeer(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	c, err := t.dialPeer(ctx, 99)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := io.WriteString(c, http2Preface); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 9))
	return err
}

// http2Preface begins a connection: the fixed text, and SETTINGS without any (RFC 9113, 3.4).
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// frame is an HTTP/2 frame (RFC 9113, 4.1).
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

func settingsFrame(uint32) []byte { return frame(4, 0, 0, []byte{0, 4, 0, 0, 0xff, 0xff}) } // SETTINGS_INITIAL_WINDOW_SIZE

func pingFrame(uint32) []byte { return frame(6, 0, 0, make([]byte, 8)) }

// resetCall begins a call of Ping and resets it.
func resetCall(n uint32) []byte {
	stream := 2*n + 1
	return append(frame(1, 4, stream, []byte(callHeader)), frame(3, 0, stream, []byte{0, 0, 0, 8})...)
}

// endlessHeader begins a header with the first frame, and goes on with all others.
func endlessHeader(n uint32) []byte {
	if n == 0 {
		return frame(1, 0, 1, []byte(callHeader))
	}
	part := append([]byte{0, 1, 'x', 127, 0xe1, 0x7e}, make([]byte, 16_352)...) // a literal of one name and 16,352 bytes (RFC 7541, 6.2.2)
	return frame(9, 0, 1, part[:6+16_352])
}

// callHeader is the header of a call of Ping, by RFC 7541: :method POST, :scheme http, and literals with indexed names, or one of its own.
const callHeader = "\x83\x86" + "\x04\x1b/spillway.peer.v1.Peer/Ping" + "\x01\x01x" + "\x0f\x10\x10application/grpc" + "\x00\x02te\x08trailers"

// framesAtOnce is how many connections a flood of frames holds.
const framesAtOnce = 16

// frames floods the port with what next gives, and reads nothing. A connection that the server closes is opened again.
func frames(next func(n uint32) []byte) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		var sent, closed atomic.Int64
		before, began := a.cpu(), time.Now()
		a.workers(ctx, framesAtOnce, func(ctx context.Context, w, _ int) bool {
			c, err := a.dialPeer(ctx, byte(2+w%8))
			if err != nil {
				sleep(ctx, 10*time.Millisecond)
				return true
			}
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			out := bufio.NewWriterSize(c, 32<<10)
			_, err = out.WriteString(http2Preface)
			for n := uint32(0); err == nil && ctx.Err() == nil; n++ {
				_, err = out.Write(next(n))
				sent.Add(1)
			}
			closed.Add(1)
			return true
		})
		took := time.Since(began).Seconds()
		if sent.Load() == 0 {
			a.blame("no frame was sent")
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.note = fmt.Sprintf("%.0f frames a second, %d connections ended, %.2f processors", float64(sent.Load())/took, closed.Load(), (a.cpu()-before).Seconds()/took)
	}
}
