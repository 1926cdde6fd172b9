package rpc

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// everyCall calls each method once.
func everyCall(ctx context.Context, p *Peer) map[string]error {
	errs := map[string]error{}
	st, err := p.OpenStream(ctx, "t")
	if errs[methodInserts] = err; err == nil {
		_ = st.Close()
	}
	set, err := p.Select(ctx, &peer.Select{})
	if errs[methodSelect] = err; err == nil {
		_ = set.Close()
	}
	_, _, errs[methodLabelNames] = p.LabelNames(ctx, &peer.Select{}, 0)
	_, _, errs[methodLabelValues] = p.LabelValues(ctx, &peer.Select{}, "", 0)
	_, errs[methodExemplars] = p.Exemplars(ctx, &peer.Select{}, nil)
	errs[methodPutMetadata] = p.PutMetadata(ctx, "t", nil)
	_, errs[methodGetMetadata] = p.GetMetadata(ctx, "t", "")
	errs[methodDeleteSeries] = p.DeleteSeries(ctx, &peer.Select{})
	errs[methodCleanTombstones] = p.CleanTombstones(ctx, &peer.Select{})
	_, errs[methodStats] = p.Stats(ctx, "t", 1)
	_, errs[methodStagedStats] = p.StagedStats(ctx, "t")
	_, _, errs[methodStagedTimes] = p.StagedTimes(ctx, "t")
	errs[methodEndSlices] = p.EndSlices(ctx, "t", 1, 2)
	_, errs[methodHighestRank] = p.HighestRank(ctx, "t", 1)
	_, errs[methodChange] = p.Change(ctx, &peer.Change{})
	errs[methodStore] = p.Store(ctx, &peer.File{})
	errs[methodStoreOps] = p.Store(ctx, &peer.File{Digest: 1})
	_, errs[methodFetch] = p.Fetch(ctx, &peer.FileQuery{Table: "t"})
	_, _, errs[methodGetRow] = p.GetRow(ctx, "a")
	_, _, errs[methodListRows] = p.ListRows(ctx, "a")
	_, _, errs[methodCommitRows] = p.CommitRows(ctx, nil, nil)
	errs[methodWatchRows] = p.WatchRows(ctx, "a", 0, func([]peer.RowEvent) error { return nil })
	errs[methodLink] = linkOnce(ctx, p)
	errs[methodPing] = p.call(ctx, methodPing, &nothing{}, &nothing{})
	return errs
}

// TestRolesMayCallWhatTheyNeed: the role in the certificate decides, method by method.
func TestRolesMayCallWhatTheyNeed(t *testing.T) {
	a := newTestAuthority(t)
	addr, _ := serve(t, newMemory(), Settings{TLS: a.files(t, "127.0.0.1")})
	f := func(r Role, denied string) {
		t.Helper()
		p := dial(t, addr, DialSettings{TLS: a.filesOf(t, "x", Identity{r, "x"}.URI())})
		for method, err := range everyCall(t.Context(), p) {
			want := strings.Contains(" "+denied+" ", " "+method+" ")
			if fault.Is(err, fault.Denied) != want {
				t.Errorf("%s by %s: %v; denied: %t", method, r, err, want)
			}
			if want && err != nil && (!strings.Contains(err.Error(), string(r)) || !strings.Contains(err.Error(), method)) {
				t.Errorf("%q names neither role nor method", err)
			}
		}
	}
	const rows = "Inserts Select LabelNames LabelValues Exemplars PutMetadata GetMetadata DeleteSeries CleanTombstones StagedStats StagedTimes"
	const coordination = " GetRow ListRows CommitRows WatchRows"
	f(RoleGateway, coordination+" Link EndSlices HighestRank")
	f(RoleStorage, strings.TrimPrefix(rows, "Inserts ")+coordination) // it opens streams for staged rows
	f(RoleAdmin, rows+" Link EndSlices HighestRank")
}

func TestEveryMethodHasRights(t *testing.T) {
	srv, err := NewServer(Deps{Storage: newMemory()}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for _, m := range srv.service().Streams {
		if len(rights[m.StreamName]) == 0 {
			t.Errorf("nobody may call %s", m.StreamName)
		}
	}
	if len(rights) != len(srv.service().Streams) {
		t.Error("there are rights to what is no method")
	}
}

// TestCertificatesSayWhoTheyAreFor: one without a role, as they were made once, opens nothing, and the error says how to renew it.
func TestCertificatesSayWhoTheyAreFor(t *testing.T) {
	a := newTestAuthority(t)
	addr, _ := serve(t, newMemory(), Settings{TLS: a.files(t, "127.0.0.1")})
	f := func(want string, is ...*url.URL) {
		t.Helper()
		p := dial(t, addr, DialSettings{TLS: a.filesOf(t, "old", is...)})
		for method, err := range everyCall(t.Context(), p) {
			if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want Denied and %q", method, err, want)
			}
		}
	}
	other := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	f("spillway certs")
	f("spillway certs", other("https://storage/s1"))
	f("no role and name", other("spillway://emperor/x"))
	f("no role and name", other("spillway://gateway"))
	f("2 roles", other("spillway://gateway/g1"), other("spillway://admin/ops"))
}

// TestServersAreWhoTheySayTheyAre: a caller checks the server's name, and a process starts with its own certificate only.
func TestServersAreWhoTheySayTheyAre(t *testing.T) {
	a := newTestAuthority(t)
	s1 := a.filesOf(t, "127.0.0.1", Identity{RoleStorage, "s1"}.URI())
	s1.Own = Identity{RoleStorage, "s1"}
	addr, _ := serve(t, newMemory(), Settings{TLS: s1})
	imposter, _ := serve(t, newMemory(), Settings{TLS: a.filesOf(t, "127.0.0.1", Identity{RoleGateway, "g1"}.URI())})
	nobody, _ := serve(t, newMemory(), Settings{TLS: a.filesOf(t, "127.0.0.1")})
	f := func(addr, server, want string) {
		t.Helper()
		_, err := dial(t, addr, DialSettings{TLS: a.files(t, "gw"), Server: server}).Stats(t.Context(), "t", 1)
		if want == "" && err != nil || want != "" && (!fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s at %s: %v, want %q", server, addr, err, want)
		}
	}
	f(addr, "s1", "")
	f(addr, "", "")
	f(addr, "s2", "for storage/s1, not for storage/s2")
	f(imposter, "s1", "for gateway/g1, not for a process of role")
	f(nobody, "", "spillway certs")

	for want, own := range map[string]Identity{"": {RoleStorage, ""}, "not for storage/s2": {RoleStorage, "s2"}, "not for a process of role": {RoleGateway, ""}} {
		s1.Own = own
		srv, err := NewServer(Deps{Storage: newMemory()}, Settings{TLS: s1})
		if err == nil && srv.Shutdown(t.Context()) != nil {
			t.Errorf("a server as %s does not end", own)
		}
		if want == "" && err != nil || want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("a start as %s: %v, want Invalid and %q", own, err, want)
		}
	}
}
