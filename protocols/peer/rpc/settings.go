package rpc

import (
	"errors"
	"log/slog"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TLS is how peers authenticate each other: both show a certificate of one authority, and a server's must be for the address
// that was called. Files are PEM; they are checked at each handshake and read again when they changed.
type TLS struct {
	CAFile, CertFile, KeyFile string

	// CRLFile lists certificates that the authority has revoked, in PEM, and signs; "": none are. It may hold several lists, of several authorities. Connections with a
	// certificate that is added to a list are closed within seconds.
	CRLFile string

	// ServerName is the name that servers' certificates must be for, when it is not the host of the address. Only for Dial.
	ServerName string

	// Insecure accepts and sends everything in the clear: for development. Then there are no files, and every caller may
	// call everything.
	Insecure bool

	// Own is the identity of this process: its certificate must have that role, and that name if Own has one. The zero Identity is
	// not checked.
	Own Identity
}

func (t *TLS) validate() error {
	files := t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" || t.CRLFile != ""
	switch {
	case t.Insecure && files:
		return fault.Errorf(fault.Invalid, "peer TLS: insecure, and files of certificates too; choose one")
	case t.Insecure:
		return nil
	case t.CAFile == "" || t.CertFile == "" || t.KeyFile == "":
		return fault.Errorf(fault.Invalid, "peer TLS: the files of the CA, the certificate and its key are needed, all three: `spillway certs` makes them; or say insecure")
	}
	return nil
}

// Settings are numbers a user sets on the side of the server.
type Settings struct {
	TLS TLS

	// WindowBytes bounds what one stream of inserts may have under way, encoded, before acks must come; the gateway is
	// Throttled at it. Default 64 MiB; at least 34 MiB, so that the largest insert fits. Larger: more memory a gateway.
	WindowBytes int64
	// InsertsMax bounds the inserts under way on one stream. Default 1024. Each waits for its fsync in its own goroutine.
	InsertsMax int
	// InsertBytesMax bounds the inserts under way of all streams, encoded. Default 256 MiB. Beyond it they are Throttled.
	InsertBytesMax int64
	// DecodedBytesMax bounds the memory of the decoded rows of inserts under way of all streams. Default 512 MiB; at least 1 MiB. Beyond it inserts wait for a
	// second, and are Throttled then; the longest are decoded alone.
	DecodedBytesMax int64
	// RequestBytesMax bounds the memory of the other requests until they are answered, maps among them. Default 2 × peer.MapBytesMax; at least 64 MiB. An eighth of
	// it, and at least 16 MiB, is for reads, and as much for deletions and other orders. Smaller: the longest maps are refused (TooLarge).
	RequestBytesMax int64
	// SilenceMax is how long a gateway may be silent before its connection is closed and its streams dropped.
	// Default 10 s; at least 1 s.
	SilenceMax time.Duration
	// StrangersMax bounds the connections that have shown no certificate yet, or made no call where peers speak in the clear. Default and most StrangersMax, 512. Smaller:
	// more file descriptors are left for segments, and a flood of strangers is more likely to close a peer that is connecting.
	StrangersMax int
}

func (s *Settings) setDefaults() {
	setDefault(&s.StrangersMax, StrangersMax)
	setDefault(&s.WindowBytes, 64<<20)
	setDefault(&s.InsertsMax, 1024)
	setDefault(&s.InsertBytesMax, 256<<20)
	setDefault(&s.DecodedBytesMax, 512<<20)
	setDefault(&s.RequestBytesMax, 2*peer.MapBytesMax)
	setDefault(&s.SilenceMax, 10*time.Second)
}

// requestsLeast leaves maps half beside reads and orders.
const requestsLeast = 8 * smallMax

func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// Validate reports every mistake at once. Errors are Invalid.
func (s Settings) Validate() error {
	s.setDefaults()
	var errs []error
	if s.WindowBytes < messageBytesMax+1<<20 {
		errs = append(errs, fault.Errorf(fault.Invalid, "peer window of %d bytes: at least %d, so that the largest insert fits", s.WindowBytes, messageBytesMax+1<<20))
	}
	if s.InsertsMax < 1 || s.InsertBytesMax < s.WindowBytes || s.RequestBytesMax < requestsLeast {
		errs = append(errs, fault.Errorf(fault.Invalid, "peer bounds: at least one insert a stream, %d bytes of inserts and %d of requests", s.WindowBytes, requestsLeast))
	}
	if s.DecodedBytesMax < 1<<20 {
		errs = append(errs, fault.Errorf(fault.Invalid, "peer memory of %d bytes for decoded rows, at least 1 MiB is needed", s.DecodedBytesMax))
	}
	if s.StrangersMax < 1 || s.StrangersMax > StrangersMax {
		errs = append(errs, fault.Errorf(fault.Invalid, "%d connections without a certificate: from 1 to %d are possible", s.StrangersMax, StrangersMax))
	}
	if s.SilenceMax < time.Second {
		errs = append(errs, fault.Errorf(fault.Invalid, "peer silence of %v, at least 1 s is needed", s.SilenceMax))
	}
	return joinInvalid(append(errs, s.TLS.validate()))
}

func joinInvalid(errs []error) error {
	if err := errors.Join(errs...); err != nil {
		return fault.Wrap(err, fault.Invalid, "settings of peers")
	}
	return nil
}

// DialSettings are numbers a user sets on the side of the gateway, and objects that all its peers share.
type DialSettings struct {
	TLS TLS

	// Server is the name of the storage server behind the address: its certificate must be for that name. "": for any.
	Server string

	// SilenceMax is how long a peer may send nothing at all while calls wait and it is asked for a sign of life;
	// then its connection is closed and the calls are Unavailable. Default 2 s; at least 200 ms. Smaller: a peer with busy
	// processors loses its streams, and their series must be defined again.
	SilenceMax time.Duration
	// ConnectMax bounds a connect with its handshake. Default 2 s.
	ConnectMax time.Duration
	// CallsMax bounds calls, selects and streams under way; more are Throttled. Default and most 984.
	CallsMax int

	Metrics *DialMetrics // shared by all peers of the process; nil: none
	Log     *slog.Logger // nil: none
}

func (s *DialSettings) setDefaults() {
	setDefault(&s.SilenceMax, 2*time.Second)
	setDefault(&s.ConnectMax, 2*time.Second)
	setDefault(&s.CallsMax, callsMax)
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	if s.Metrics == nil {
		s.Metrics = NewDialMetrics(nil)
	}
}

// callsMax, with the streams that are kept idle, is below streamsMax, the server's limit for a connection: a sign of life must never wait for a free stream.
const (
	callsMax   = streamsMax - 2*keptMax - 8
	streamsMax = 1024
)

// Validate reports every mistake at once. Errors are Invalid.
func (s DialSettings) Validate() error {
	s.setDefaults()
	var errs []error
	if s.SilenceMax < 200*time.Millisecond || s.ConnectMax < 10*time.Millisecond {
		errs = append(errs, fault.Errorf(fault.Invalid, "peer silence of %v and connects of %v: at least 200 ms and 10 ms are needed", s.SilenceMax, s.ConnectMax))
	}
	if s.CallsMax < 1 || s.CallsMax > callsMax {
		errs = append(errs, fault.Errorf(fault.Invalid, "%d calls to a peer at a time: 1 to %d may be", s.CallsMax, callsMax))
	}
	return joinInvalid(append(errs, s.TLS.validate()))
}
