package process

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// A server that sends heartbeats is live: partitions are placed on it, and it leads some. Heartbeats go through the coordination store, so that a
// server with certificates that no other accepts is live as well, and its partitions lack a copy or cannot be written. Hence certificates are
// verified before anything is opened, and a storage server that most others refuse and none accepts does not register.

// checkWays checks the settings of the coordination store and of peers, without a connection. own is the identity of this process. A mistake that a
// restart does not mend is a terminal.UsageError; other errors are Unavailable.
func checkWays(set *settings.Config, own rpc.Identity) error {
	err := set.Coord.Check()
	if err == nil {
		err = fault.Annotate(set.Peer.TLS(own).Check(time.Now()), "settings of peers")
	}
	if err == nil || fault.Is(err, fault.Unavailable) {
		return err
	}
	return terminal.UsageError{Err: err}
}

// askAccepted asks the storage servers that are registered now. Errors are those of accepted and of the coordination store.
func (p *storage) askAccepted(ctx context.Context) error {
	all, err := registry.List(ctx, p.view.Coord)
	if fault.Is(err, fault.Unavailable) {
		return err
	}
	if err != nil { // a row that this build cannot read keeps no server away
		p.log.Warn("the other servers are not asked whether they accept this one", "error", err)
	}
	err, warning := accepted(ctx, p.cfg.Peer.TLS(rpc.Identity{Role: rpc.RoleStorage, Name: string(p.id)}), p.id, all)
	if warning != nil {
		p.log.Warn("the server is registered although a server refuses it: too few others answer to say which of them is wrong", "error", warning)
	}
	return err
}

// acceptedMax bounds how long other servers are waited for.
const acceptedMax = 3 * time.Second

// acceptedAtOnce bounds how many are asked at a time: those that are gone keep their turn until the end.
const acceptedAtOnce = 64

// accepted asks the others of the registered servers whether they and the server id, this process, accept each other's certificates. The error is
// Unavailable: none accepts, and more than half of the registered servers refuse; others may get new certificates, and so may this process. warning
// is a refusal by fewer. A server answers only when others have accepted it, or too few answered: after a power cut, one with wrong certificates that is the first would
// else keep all others out for ever.
func accepted(ctx context.Context, t rpc.TLS, id topology.ServerID, all []registry.Server) (err, warning error) {
	others := slices.DeleteFunc(slices.Clone(all), func(s registry.Server) bool { return s.ID == id })
	ctx, cancel := context.WithTimeout(ctx, acceptedMax)
	defer cancel()
	answers := make([]error, len(others))
	var g errgroup.Group
	g.SetLimit(acceptedAtOnce)
	for i, s := range others {
		g.Go(func() error {
			if answers[i] = t.Try(ctx, s.Addr); answers[i] == nil {
				cancel() // one is enough
			}
			return nil
		})
	}
	_ = g.Wait()
	var why error // of the first that refuses
	refuse := 0
	for i, answer := range answers {
		if answer == nil {
			return nil, nil
		}
		if fault.Is(answer, fault.Denied) && !ofTheOther(answer) {
			refuse++
			why = cmp.Or(why, fault.Annotate(answer, "server %s", others[i].ID))
		}
	}
	if 2*refuse <= len(all) {
		return nil, why
	}
	return fault.Wrap(why, fault.Unavailable, "no storage server accepts the certificate of this one, or it accepts none of theirs (%d of %d answered so): --peer.tls.ca, --peer.tls.cert and --peer.tls.key must be of the cluster's authority", refuse, len(others)), nil
}

// ofTheOther reports whether a refusal is no sign of wrong certificates here: the other's is of an authority that is accepted, and expired, or for another host, as where another
// server has the address now.
func ofTheOther(refusal error) bool {
	return errors.As(refusal, new(x509.CertificateInvalidError)) || errors.As(refusal, new(x509.HostnameError))
}
