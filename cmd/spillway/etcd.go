package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// etcdCmd is an etcd member for trying a cluster out and for tests: the same server as etcd's own binary, with few of
// its settings and no security. A cluster that matters has three members of their own.
type etcdCmd struct {
	DataDir        string        `name:"data-dir" help:"Where the member keeps its state." type:"path" default:"./spillway-etcd"`
	Listen         string        `name:"listen" help:"Address for clients." default:"127.0.0.1:2379"`
	PeerListen     string        `name:"peer-listen" help:"Address for other members." default:"127.0.0.1:2380"`
	Name           string        `name:"name" help:"This member's name." default:"m1"`
	InitialCluster string        `name:"initial-cluster" help:"All members: m1=host:port,m2=host:port with their addresses for members (default: this one alone)."`
	ReadyTimeout   time.Duration `name:"ready-timeout" help:"How long to wait for the other members." default:"60s"`
}

// Run serves until a signal comes.
func (e *etcdCmd) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := e.config()
	if err != nil {
		return err
	}
	member, err := embed.StartEtcd(c)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "etcd in %s", e.DataDir)
	}
	defer member.Close()
	select {
	case <-member.Server.ReadyNotify():
	case err := <-member.Err():
		return fault.Wrap(err, fault.Unavailable, "etcd")
	case <-time.After(e.ReadyTimeout):
		return fault.Errorf(fault.Unavailable, "etcd: the other members did not answer within %v", e.ReadyTimeout)
	case <-ctx.Done():
		return nil
	}
	fmt.Fprintf(os.Stderr, "\netcd %s is ready; give the others --coord=etcd://%s\n\n", e.Name, e.Listen)
	select {
	case err := <-member.Err():
		return fault.Wrap(err, fault.Unavailable, "etcd")
	case <-ctx.Done():
		return nil
	}
}

func (e *etcdCmd) config() (*embed.Config, error) {
	c := embed.NewConfig()
	c.Name, c.Dir = e.Name, e.DataDir
	c.LogLevel, c.LogOutputs = "fatal", []string{"stderr"} // it calls its own stop an error; real ones are returned
	client, peer := url.URL{Scheme: "http", Host: e.Listen}, url.URL{Scheme: "http", Host: e.PeerListen}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// Rows are small and change often: history is needed only by watches that broke a moment ago.
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "10m"
	// What is committed lies in its log, fsynced. Its tables need not follow ten times a second: heartbeats never pause, and
	// each time is an fsync, too.
	c.BackendBatchInterval = time.Second
	if e.InitialCluster != "" {
		members, err := membersOf(e.InitialCluster)
		if err != nil {
			return nil, err
		}
		c.InitialCluster = members
	}
	return c, fault.Wrap(c.Validate(), fault.Invalid, "etcd")
}

// membersOf puts the scheme in front of the addresses of m1=host:port,m2=host:port.
func membersOf(list string) (string, error) {
	out := ""
	for _, member := range strings.Split(list, ",") {
		name, addr, _ := strings.Cut(member, "=")
		if name == "" || addr == "" {
			return "", fault.Errorf(fault.Invalid, "--initial-cluster %q is not of the form m1=host:port,m2=host:port", list)
		}
		if out != "" {
			out += ","
		}
		out += name + "=http://" + addr
	}
	return out, nil
}
