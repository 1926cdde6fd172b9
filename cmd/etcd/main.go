// Command etcd runs an etcd member for trying a cluster out and for tests: `make cluster` and the tests of a cluster start it. It is
// the same server as etcd's own binary, with few of its settings, in a separate program: the product is smaller without it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// rootUser is etcd's own name for its administrator; `spillway certs` makes its certificate.
const rootUser = "root"

func main() {
	var m member
	ctx := kong.Parse(&m, kong.Name("etcd"), kong.Description("Run an etcd member, to try a cluster out without installing one."))
	ctx.FatalIfErrorf(ctx.Run())
}

// member is an etcd member. A cluster for production has three separate members. With certificates, members and clients
// authenticate each other, and users are switched on: root, and one that may read and write Spillway's keys.
type member struct {
	DataDir        string        `name:"data-dir" help:"Where the member keeps its state." type:"path" default:"./spillway-etcd"`
	Listen         string        `name:"listen" help:"Address for clients." default:"127.0.0.1:2379"`
	PeerListen     string        `name:"peer-listen" help:"Address for other members." default:"127.0.0.1:2380"`
	Name           string        `name:"name" help:"This member's name." default:"m1"`
	InitialCluster string        `name:"initial-cluster" help:"All members: m1=host:port,m2=host:port with their addresses for members (default: this one alone)."`
	HealthListen   string        `name:"health-listen" help:"Address that answers /health and /metrics in the clear, to all clients (default: none of its own)."`
	CA             string        `name:"tls.ca" help:"File with the authority of members and clients. With it, all of them need a certificate." placeholder:"FILE" type:"path"`
	Cert           string        `name:"tls.cert" help:"File with this member's certificate." placeholder:"FILE" type:"path"`
	Key            string        `name:"tls.key" help:"File with its key." placeholder:"FILE" type:"path"`
	User           string        `name:"user" help:"The user that Spillway's processes are, by the common name of their certificates. With --tls.ca." default:"spillway"`
	Prefix         string        `name:"prefix" help:"What that user may read and write." default:"spillway"`
	ReadyTimeout   time.Duration `name:"ready-timeout" help:"How long to wait for the other members." default:"60s"`
}

// Run serves until a signal comes.
func (e *member) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := e.config()
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(c)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "etcd in %s", e.DataDir)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fault.Wrap(err, fault.Unavailable, "etcd")
	case <-time.After(e.ReadyTimeout):
		return fault.Errorf(fault.Unavailable, "etcd: the other members did not answer within %v", e.ReadyTimeout)
	case <-ctx.Done():
		return nil
	}
	if e.CA != "" {
		if err := e.users(ctx, server); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "\netcd %s is ready; give the others --coord=%s://%s\n\n", e.Name, map[bool]string{false: "etcd", true: "etcds"}[e.CA != ""], e.Listen)
	select {
	case err := <-server.Err():
		return fault.Wrap(err, fault.Unavailable, "etcd")
	case <-ctx.Done():
		return nil
	}
}

func (e *member) config() (*embed.Config, error) {
	c := embed.NewConfig()
	c.Name, c.Dir = e.Name, e.DataDir
	c.LogLevel, c.LogOutputs = "fatal", []string{"stderr"} // it calls its own stop an error; real ones are returned
	if (e.CA == "") != (e.Cert == "") || (e.CA == "") != (e.Key == "") {
		return nil, fault.Errorf(fault.Invalid, "--tls.ca, --tls.cert and --tls.key go together: `spillway certs --etcd %s=HOST` makes them", e.Name)
	}
	scheme := "http"
	if e.CA != "" {
		scheme = "https"
		c.ClientTLSInfo = transport.TLSInfo{CertFile: e.Cert, KeyFile: e.Key, TrustedCAFile: e.CA, ClientCertAuth: true}
		c.PeerTLSInfo = c.ClientTLSInfo
	}
	if e.HealthListen != "" {
		c.ListenMetricsUrls = []url.URL{{Scheme: "http", Host: e.HealthListen}}
	}
	client, peer := url.URL{Scheme: scheme, Host: e.Listen}, url.URL{Scheme: scheme, Host: e.PeerListen}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// Rows are small and change often: only watches that broke a moment ago need history.
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "10m"
	// Committed entries are in its log, fsynced. Its tables need not be committed ten times a second: heartbeats never
	// pause, and each commit is an fsync, too.
	c.BackendBatchInterval = time.Second
	if e.InitialCluster != "" {
		members, err := membersOf(scheme, e.InitialCluster)
		if err != nil {
			return nil, err
		}
		c.InitialCluster = members
	}
	return c, fault.Wrap(c.Validate(), fault.Invalid, "etcd")
}

// usersMax bounds the time for switching the users on: it needs a majority of the members.
const usersMax = 30 * time.Second

// users switches authentication on, with users by the common names of client certificates, unless it is on already.
// Several members may do it at once: steps that another member did first are skipped.
func (e *member) users(ctx context.Context, server *embed.Etcd) error {
	ctx, cancel := context.WithTimeout(ctx, usersMax)
	defer cancel()
	client := v3client.New(server.Server)
	defer client.Close()
	status, err := client.AuthStatus(ctx)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "users of etcd")
	}
	if status.Enabled {
		return nil
	}
	byCertificate := &clientv3.UserAddOptions{NoPassword: true}
	from := e.Prefix + "/"
	rights := clientv3.PermissionType(clientv3.PermReadWrite)
	steps := []func() error{
		func() error { _, err := client.UserAddWithOptions(ctx, rootUser, "", byCertificate); return err },
		func() error { _, err := client.RoleAdd(ctx, rootUser); return err },
		func() error { _, err := client.UserGrantRole(ctx, rootUser, rootUser); return err },
		func() error { _, err := client.UserAddWithOptions(ctx, e.User, "", byCertificate); return err },
		func() error { _, err := client.RoleAdd(ctx, e.User); return err },
		func() error {
			_, err := client.RoleGrantPermission(ctx, e.User, from, clientv3.GetPrefixRangeEnd(from), rights)
			return err
		},
		func() error { _, err := client.UserGrantRole(ctx, e.User, e.User); return err },
		func() error { _, err := client.AuthEnable(ctx); return err },
	}
	for _, step := range steps {
		err := step()
		if err == nil || errors.Is(err, rpctypes.ErrUserAlreadyExist) || errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
			continue
		}
		if status, failed := client.AuthStatus(ctx); failed == nil && status.Enabled {
			return nil // by another member, which did all steps
		}
		return fault.Wrap(err, fault.Unavailable, "users of etcd")
	}
	return nil
}

// membersOf puts the scheme in front of the addresses of m1=host:port,m2=host:port.
func membersOf(scheme, list string) (string, error) {
	out := ""
	for _, member := range strings.Split(list, ",") {
		name, addr, _ := strings.Cut(member, "=")
		if name == "" || addr == "" {
			return "", fault.Errorf(fault.Invalid, "--initial-cluster %q is not of the form m1=host:port,m2=host:port", list)
		}
		if out != "" {
			out += ","
		}
		out += name + "=" + scheme + "://" + addr
	}
	return out, nil
}
