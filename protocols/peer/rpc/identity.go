package rpc

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Role is the kind of a process in a cluster. It decides which methods the process may call.
type Role string

// The roles. Storage servers keep rows and METADATA, and one of them is the master; gateways write and read for clients;
// admins are commands that people run.
const (
	RoleStorage Role = "storage"
	RoleGateway Role = "gateway"
	RoleAdmin   Role = "admin"
)

// Roles lists every Role.
func Roles() []Role { return []Role{RoleStorage, RoleGateway, RoleAdmin} }

// Identity is the process that a certificate is for: its one URI with the scheme spillway,
//
//	spillway://storage/s1    spillway://gateway/g1    spillway://admin/ops
//
// in its subject alternative name. The authority stands for the cluster, so it does not contain the cluster's name.
type Identity struct {
	Role Role
	Name string
}

const identityScheme = "spillway"

// URI is the identity as a certificate has it.
func (i Identity) URI() *url.URL {
	return &url.URL{Scheme: identityScheme, Host: string(i.Role), Path: "/" + i.Name}
}

// String returns storage/s1.
func (i Identity) String() string { return string(i.Role) + "/" + i.Name }

// renew is the remedy for a certificate that was made before roles were.
const renew = "renew it with `spillway certs --storage ID=HOST --gateways NAME --admins NAME`, in the directory that has the authority's key"

// IdentityOf reads the identity from a certificate. Errors are Denied: it has no role, or not clearly.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	var found []*url.URL
	for _, u := range cert.URIs {
		if u.Scheme == identityScheme {
			found = append(found, u)
		}
	}
	switch len(found) {
	case 0:
		return Identity{}, fault.Errorf(fault.Denied, "the certificate of %q has no role: %s", cert.Subject.CommonName, renew)
	case 1:
	default:
		return Identity{}, fault.Errorf(fault.Denied, "the certificate of %q has %d roles, one is allowed", cert.Subject.CommonName, len(found))
	}
	id := Identity{Role(found[0].Host), strings.TrimPrefix(found[0].Path, "/")}
	if !slices.Contains(Roles(), id.Role) || id.Name == "" {
		return Identity{}, fault.Errorf(fault.Denied, "the certificate of %q is for %s, which is no role and name that are known here", cert.Subject.CommonName, found[0])
	}
	return id, nil
}

// check compares a certificate's identity with the expected one; an empty name matches any. The zero Identity accepts all.
func (i Identity) check(cert *x509.Certificate) error {
	if i == (Identity{}) {
		return nil
	}
	is, err := IdentityOf(cert)
	switch {
	case err != nil:
		return err
	case is.Role != i.Role:
		return fault.Errorf(fault.Denied, "the certificate of %q is for %s, not for a process of role %q", cert.Subject.CommonName, is, i.Role)
	case i.Name != "" && is.Name != i.Name:
		return fault.Errorf(fault.Denied, "the certificate of %q is for %s, not for %s", cert.Subject.CommonName, is, i)
	}
	return nil
}

// rights lists the roles that may call each method; all others may not. Each role needs them for:
//
//	gateway   rows in and out, names, deletions; METADATA: the map, partitions for new times, new tables, drops
//	storage   METADATA, of which every storage server keeps some; as the master, the stats of other servers; copies of partitions; its own metrics
//	admin     METADATA and rows of the coordination store, as the commands for people change them; the stats of servers
var rights = map[string][]Role{
	methodInserts:         {RoleGateway, RoleStorage}, // of storage servers only those of staging, and their own metrics
	methodSelect:          {RoleGateway},
	methodEvaluate:        {RoleGateway},
	methodEvaluations:     {RoleGateway},
	methodEvaluationsKept: {RoleGateway},
	methodReadsKept:       {RoleGateway}, // and each read as if it had a stream of its own
	methodLabelNames:      {RoleGateway},
	methodLabelValues:     {RoleGateway},
	methodExemplars:       {RoleGateway},
	methodPutMetadata:     {RoleGateway, RoleStorage}, // of storage servers only those of their own metrics
	methodGetMetadata:     {RoleGateway},
	methodDeleteSeries:    {RoleGateway},
	methodCleanTombstones: {RoleGateway},
	methodStats:           {RoleGateway, RoleStorage, RoleAdmin},
	methodStagedStats:     {RoleGateway},
	methodStagedTimes:     {RoleGateway},
	methodEndSlices:       {RoleStorage},
	methodHighestRank:     {RoleStorage},
	methodChange:          {RoleGateway, RoleStorage, RoleAdmin},
	methodStore:           {RoleGateway, RoleStorage, RoleAdmin}, // the creator of a table sends its first file
	methodStoreOps:        {RoleGateway, RoleStorage, RoleAdmin},
	methodFetch:           {RoleGateway, RoleStorage, RoleAdmin},
	methodPing:            {RoleGateway, RoleStorage, RoleAdmin},
	methodGetRow:          {RoleAdmin},
	methodListRows:        {RoleAdmin},
	methodCommitRows:      {RoleAdmin},
	methodWatchRows:       {RoleAdmin},
	methodLink:            {RoleStorage}, // frames and segments of copies
	methodSnapshots:       {RoleGateway}, // of backups
}

// allow decides whether a caller may call a method, by its certificate. Errors are Denied.
func (s *Server) allow(method string, ctx context.Context) error {
	if s.settings.TLS.Insecure {
		return nil
	}
	id, err := callerOf(ctx)
	if err == nil && !slices.Contains(rights[method], id.Role) {
		err = fault.Errorf(fault.Denied, "role %q may not call %s, only %s", id.Role, method, roleList(rights[method]))
	}
	return fault.Annotate(err, "%s", method)
}

// allowInsert decides whether a caller may make an insert. A storage server forwards what is staged at it, stages it elsewhere, and moves rows to the partitions that replace a split or merged one; a gateway has no
// such rights except to stage, and to give back the rows of a backup, with the ranks they had, where none is as new. Errors are Denied.
func allowInsert(role Role, table string, in *peer.Insert) error {
	forwards := in.Staging != nil && in.Staging.Do != peer.Stage && in.Staging.Do != peer.Inherit
	switch {
	case role == RoleStorage && in.Staging == nil && table != peer.OwnTable:
		return fault.Errorf(fault.Denied, "role %q may insert only rows that were staged or that another partition had, and its own metrics", role)
	case role == RoleGateway && forwards:
		return fault.Errorf(fault.Denied, "role %q may not forward staged rows, nor end their staging", role)
	}
	return nil
}

// allowMetadata decides whether a caller may describe the metrics of a table. Errors are Denied.
func allowMetadata(role Role, table string) error {
	if role == RoleStorage && table != peer.OwnTable {
		return fault.Errorf(fault.Denied, "role %q may call %s only for its own metrics", role, methodPutMetadata)
	}
	return nil
}

// callerOf reads the caller's certificate. Errors are Denied.
func callerOf(ctx context.Context) (Identity, error) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return Identity{}, fault.Errorf(fault.Denied, "the caller is not known")
	}
	info := p.AuthInfo
	if paced, ok := info.(pacedInfo); ok {
		info = paced.AuthInfo
	}
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.PeerCertificates) == 0 {
		return Identity{}, fault.Errorf(fault.Denied, "the caller at %v shows no certificate", p.Addr)
	}
	id, err := IdentityOf(t.State.PeerCertificates[0])
	return id, fault.Annotate(err, "the caller at %v", p.Addr)
}

func roleList(roles []Role) string {
	var out []string
	for _, r := range roles {
		out = append(out, fmt.Sprintf("%q", r))
	}
	return strings.Join(out, ", ")
}
