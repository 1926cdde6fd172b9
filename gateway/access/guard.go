package access

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Deps are a Guard's dependencies.
type Deps struct {
	Log        *slog.Logger          // nil: silence
	Registerer prometheus.Registerer // nil: no metrics are registered
}

// Settings name the files. Without any, every request may do everything.
type Settings struct {
	WebFile    string // web-config of Prometheus: TLS, users, headers; "": none
	TokensFile string // "": none
}

// Guard decides which requests may come in. All methods may be called from many goroutines.
type Guard struct {
	// Constant after Open.
	settings  Settings
	log       *slog.Logger
	metrics   *metrics
	passwords *passwords
	failures  *failures
	everyone  *Identity

	now atomic.Pointer[state]

	reload struct {
		sync.Mutex
		failed string // the error of the last reload, so that it is logged once
		seen   digest // of the files, a period ago
	}
}

// state is the content of the files; it never changes.
type state struct {
	web    webState
	tokens tokens
	sum    digest // of all files
	closed bool   // requests without credentials are refused
}

// Open reads the files. The error is Invalid and names the fault and its place.
func Open(d Deps, s Settings) (*Guard, error) {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Registerer == nil {
		d.Registerer = prometheus.NewRegistry()
	}
	g := &Guard{settings: s, log: d.Log, passwords: newPasswords(), failures: newFailures(), everyone: Everyone()}
	st, err := s.load()
	if err != nil {
		return nil, err
	}
	g.now.Store(st)
	g.metrics = newMetrics(d.Registerer, g)
	return g, nil
}

// Check reads the files as Open does, and keeps nothing. The error is Invalid and names the fault and its place.
func Check(s Settings) error {
	_, err := s.load()
	return err
}

func (s Settings) load() (*state, error) {
	st := &state{}
	var errs []error
	if s.WebFile != "" {
		w, err := loadWeb(s.WebFile, newFiles())
		st.web, errs = w, append(errs, err)
	}
	sum := st.web.digest
	if s.TokensFile != "" {
		text, err := readFile(s.TokensFile)
		if err == nil {
			st.tokens, err = parseTokens(text)
		}
		errs = append(errs, fault.Wrap(err, fault.Invalid, "tokens.file %s", s.TokensFile))
		sum = sha256.Sum256(append(sum[:], text...))
	}
	st.sum = sum
	st.closed = s.TokensFile != "" || len(st.web.users) > 0
	return st, errors.Join(errs...)
}

// Reload reads the files again. The error is Invalid; then the old state stays in force.
func (g *Guard) Reload() error {
	g.reload.Lock()
	defer g.reload.Unlock()
	return g.applyLocked(g.settings.load())
}

// reread is Reload, but for a change that was not there a period ago: it is looked at once more. While a tokens file is written in place its first half
// is a good file too, and the senders of tokens in the second half were refused.
func (g *Guard) reread() {
	g.reload.Lock()
	defer g.reload.Unlock()
	st, err := g.settings.load()
	before := g.reload.seen
	if g.reload.seen = st.sum; err == nil && st.sum != g.now.Load().sum && st.sum != before {
		return
	}
	_ = g.applyLocked(st, err) // logged and counted
}

func (g *Guard) applyLocked(st *state, err error) error {
	old := g.now.Load()
	if err == nil {
		err = old.mayBecome(st)
	}
	if err != nil {
		g.metrics.reloads.WithLabelValues("failed").Inc()
		g.metrics.inForce.Store(false)
		if text := err.Error(); text != g.reload.failed {
			g.reload.failed = text
			g.log.Error("access settings cannot be read again; what was in force stays", "error", err)
		}
		return err
	}
	g.metrics.inForce.Store(true)
	if g.reload.failed = ""; st.sum == old.sum {
		return nil
	}
	if st.web.limit == old.web.limit {
		st.web.limiter = old.web.limiter
	}
	g.now.Store(st)
	g.metrics.reloads.WithLabelValues("changed").Inc()
	g.log.Info("access settings changed", "tokens", len(st.tokens), "users", len(st.web.users), "tls", st.web.tls != nil, "certificate_expires", st.web.expiry)
	return nil
}

// mayBecome refuses changes that need a restart. A web-config file that is cut short, as one that is just being written,
// looks like one without users and TLS, or without the demand for certificates: it must not open the door.
func (s *state) mayBecome(next *state) error {
	switch {
	case (s.web.tls != nil) != (next.web.tls != nil):
		return fault.Errorf(fault.Invalid, "web.config.file: TLS is switched on and off by a restart only")
	case s.web.tls != nil && s.web.tls.ClientAuth != tls.NoClientCert && next.web.tls.ClientAuth == tls.NoClientCert:
		return fault.Errorf(fault.Invalid, "web.config.file: client_auth_type asks for no certificates any more; that takes a restart")
	case s.web.tls != nil && s.web.tls.VerifyPeerCertificate != nil && next.web.tls.VerifyPeerCertificate == nil:
		return fault.Errorf(fault.Invalid, "web.config.file: client_allowed_sans is gone; it can be removed by a restart only")
	case s.closed && !next.closed, len(s.web.users) > 0 && len(next.web.users) == 0:
		return fault.Errorf(fault.Invalid, "web.config.file: no users are left; they can all be removed by a restart only")
	}
	return nil
}

// rereadPeriod is how often the files are read. They are read whole, a few kilobytes: times of modification are not
// reliable, least of all with mounted secrets.
const rereadPeriod = time.Second

// Run reads the files again when they have changed, until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	if g.settings == (Settings{}) {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(rereadPeriod)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			g.reread()
		}
	}
}

// TLS is the configuration for a listener, or nil where connections are plain. It asks for the certificates in force at
// every handshake.
func (g *Guard) TLS() *tls.Config {
	first := g.now.Load().web.tls
	if first == nil {
		return nil
	}
	c := first.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return g.now.Load().web.tls, nil }
	return c
}

// Headers are those that every answer carries. Nil has none.
func (g *Guard) Headers() []Header {
	if g == nil {
		return nil
	}
	return g.now.Load().web.headers
}

// Open reports whether every request is accepted, with or without credentials. Nil is open.
func (g *Guard) Open() bool {
	if g == nil {
		return true
	}
	st := g.now.Load()
	return !st.closed && st.web.limiter == nil
}

// Identify finds the sender of a request. The error is a *Refusal.
func (g *Guard) Identify(c Credentials) (*Identity, error) {
	st := g.now.Load()
	if l := st.web.limiter; l != nil && !l.Allow() {
		return nil, g.refused(refuse("rate"))
	}
	if !st.closed {
		return g.everyone, nil
	}
	cl, bad := c.claim()
	if bad != nil {
		return nil, g.refused(bad)
	}
	id, bad := g.identify(st, cl, c.Remote, time.Now())
	if bad != nil {
		return nil, g.refused(bad)
	}
	return id, nil
}

// identify checks a claim against tokens first, which is cheap, then against passwords.
func (g *Guard) identify(st *state, cl claim, remote func() string, now time.Time) (*Identity, *Refusal) {
	id := st.tokens.find(cl.token)
	if id == nil {
		id = st.tokens.find(cl.password)
	}
	if id != nil {
		if !id.expires.IsZero() && !now.Before(id.expires) {
			return nil, refuse("expired")
		}
		return id, nil
	}
	if len(st.web.users) > 0 && cl.user != "" {
		id, bad := g.password(st, cl, remote, now)
		if id != nil || bad != nil {
			return id, bad
		}
	}
	if g.failures.blocked(remote(), now) {
		return nil, refuse("throttled")
	}
	g.failures.note(remote(), now)
	return nil, refuse("unknown")
}

// password gives the user of a good password, without hashing where the result is cached. Nil is neither a user nor a
// refusal yet.
func (g *Guard) password(st *state, cl claim, remote func() string, now time.Time) (*Identity, *Refusal) {
	u, exists := st.web.users[cl.user]
	if !exists {
		u.hash = st.web.decoy // so that the answer comes as late as for a user that exists
	}
	d := g.passwords.digest(cl.user, u.hash, cl.password)
	good, known := g.passwords.known(d)
	if !known {
		if g.failures.blocked(remote(), now) {
			return nil, refuse("throttled")
		}
		g.metrics.hashed.Inc()
		var busy bool
		if good, busy = g.passwords.check(d, u.hash, cl.password, exists); busy {
			return nil, refuse("throttled")
		}
	}
	if !good {
		return nil, nil
	}
	return u.id, nil
}

// refused counts a refusal.
func (g *Guard) refused(r *Refusal) error {
	g.metrics.refused.WithLabelValues(r.Reason).Inc()
	return r
}

// Forbidden counts err if it is a refusal for want of rights, and returns it.
func (g *Guard) Forbidden(err error) error {
	var r *Refusal
	if errors.As(err, &r) {
		g.metrics.refused.WithLabelValues(r.Reason).Inc()
	}
	return err
}
