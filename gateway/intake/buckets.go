package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
)

// v2 clients ask for ids before they write. Ours are made from names, so that every gateway gives the same.
type bucket struct {
	ID             string `json:"id"`
	OrgID          string `json:"orgID"`
	Type           string `json:"type"`
	Name           string `json:"name"`
	RetentionRules []rule `json:"retentionRules"`
}

// rule is how long a bucket keeps its rows; none: for ever.
type rule struct {
	Type         string `json:"type"` // "expire"
	EverySeconds int64  `json:"everySeconds"`
}

type org struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func idOf(kind, name string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(kind + "/" + name))
	return fmt.Sprintf("%016x", h.Sum64())
}

// orgName is the organisation of everything: tables have none.
const orgName = "spillway"

// bucketOf describes a table that keeps its rows for so many seconds; 0: for ever.
func bucketOf(table string, keep int64) bucket {
	b := bucket{idOf("bucket", table), idOf("org", orgName), "user", table, []rule{}}
	if keep > 0 {
		b.RetentionRules = []rule{{"expire", keep}}
	}
	return b
}

// keepSeconds is how long a table keeps its rows; 0: for ever. The error is NotFound: it was dropped.
func (f *Front) keepSeconds(ctx context.Context, name string) (int64, error) {
	t, err := f.writer.Existing(ctx, name)
	if err != nil {
		return 0, err
	}
	return keptSeconds(t), nil
}

func keptSeconds(t Table) int64 {
	now := time.Now().UnixNano()
	if lo, _ := t.Bounds(now); lo > 0 { // no table keeps rows from before 1970 and yet forgets others
		return (now - lo) / 1e9
	}
	return 0
}

// failure2 is an error in v2's words.
func (f *Front) failure2(err error, name string) Response {
	a := lineproto.V2.Answer(lineproto.Outcome{Err: err, DB: name, RetryAfter: f.settings.RetryAfter})
	r := Response{Status: a.Status, Body: a.Body}
	for _, h := range a.Header {
		r.set(h.Name, h.Value)
	}
	return r
}

// buckets serves /api/v2/buckets: GET lists them or looks one up by name or id, POST makes one.
func (f *Front) buckets(ctx context.Context, c *call) Response {
	if c.TableErr != nil {
		return f.failure2(c.TableErr, "")
	}
	if c.Method == http.MethodPost {
		return f.createBucket(ctx, c)
	}
	names, err := f.list(ctx, c.asker())
	if err != nil {
		return f.failure2(err, "")
	}
	name, id := c.Query.Get("name"), c.Query.Get("id")
	found := []bucket{}
	for _, n := range names {
		if (name != "" && databaseOf(name) != n) || (id != "" && id != idOf("bucket", n)) {
			continue
		}
		keep, err := f.keepSeconds(ctx, n)
		if fault.Is(err, fault.NotFound) {
			continue // dropped meanwhile
		}
		if err != nil {
			return f.failure2(err, n)
		}
		found = append(found, bucketOf(n, keep))
	}
	if name != "" && len(found) == 0 {
		return f.failure2(fault.Errorf(fault.NotFound, "no such bucket"), name)
	}
	return asJSON(http.StatusOK, struct {
		Links   map[string]string `json:"links"`
		Buckets []bucket          `json:"buckets"`
	}{map[string]string{"self": "/api/v2/buckets"}, found})
}

func (f *Front) createBucket(ctx context.Context, c *call) (r Response) {
	if err := c.mayCreate(); err != nil {
		r.takeInflux(lineproto.V2.Forbidden(err.Error()))
		return r
	}
	var want struct {
		Name           string `json:"name"`
		RetentionRules []rule `json:"retentionRules"`
	}
	if err := f.readBucket(ctx, c, &want); err != nil {
		return f.failure2(err, "")
	}
	table := databaseOf(want.Name)
	keep, err := keepOf(want.RetentionRules)
	if err == nil {
		err = tablename.Check(table)
	}
	if err == nil {
		err = f.allows(c.asker(), access.Write, table)
	}
	var forbidden *access.Refusal
	switch {
	case errors.As(err, &forbidden):
		return f.refuse(c, err)
	case err != nil:
		return f.failure2(err, want.Name)
	}
	names, err := f.writer.List(ctx)
	if err != nil {
		return f.failure2(err, table)
	}
	if slices.Contains(names, table) {
		return asJSON(http.StatusUnprocessableEntity, map[string]string{
			"code": "conflict", "message": "bucket with name " + table + " already exists"})
	}
	if err := f.create(ctx, table, keep); err != nil {
		return f.failure2(err, table)
	}
	seconds, err := f.keepSeconds(ctx, table)
	if err != nil {
		return f.failure2(err, table)
	}
	return asJSON(http.StatusCreated, bucketOf(table, seconds))
}

// readBucket reads the body of a request about a bucket. Errors are Invalid, or those of load.
func (f *Front) readBucket(ctx context.Context, c *call, into any) error {
	body, err := f.load(ctx, c, encIdentity)
	if err != nil {
		return err
	}
	defer f.buffers.free(&body)
	return fault.Wrap(json.Unmarshal(body.b, into), fault.Invalid, "the body is not the JSON of a bucket")
}

// bucket serves /api/v2/buckets/<id>: GET shows one, PATCH sets its retention, DELETE drops it with all its rows.
func (f *Front) bucket(ctx context.Context, c *call) Response {
	if c.TableErr != nil {
		return f.failure2(c.TableErr, "")
	}
	by := c.asker()
	by.deletes, by.creates = f.mayDelete(c), c.mayCreate()
	name, err := f.bucketWith(ctx, by, strings.TrimPrefix(c.Path, bucketPath))
	switch {
	case err != nil:
	case c.Method == http.MethodDelete:
		if err = f.dropBucket(ctx, name, by); err == nil {
			return Response{Status: http.StatusNoContent}
		}
	case c.Method == http.MethodPatch:
		err = f.changeBucket(ctx, c, name, by)
	}
	seconds := int64(0)
	if err == nil {
		seconds, err = f.keepSeconds(ctx, name)
	}
	var forbidden *access.Refusal
	switch {
	case errors.As(err, &forbidden):
		return f.refuse(c, err)
	case fault.Is(err, fault.Denied):
		var r Response
		r.takeInflux(lineproto.V2.Forbidden(err.Error()))
		return r
	case err != nil:
		return f.failure2(err, name)
	}
	return asJSON(http.StatusOK, bucketOf(name, seconds))
}

// bucketWith returns the name of the bucket with an id, among those that the request reaches. The error is NotFound, or the writer's.
func (f *Front) bucketWith(ctx context.Context, by asker, id string) (string, error) {
	names, err := f.list(ctx, by)
	if err != nil {
		return "", err
	}
	for _, n := range names {
		if idOf("bucket", n) == id {
			return n, nil
		}
	}
	return "", fault.Errorf(fault.NotFound, "there is no bucket with the id %.40q", id)
}

// dropBucket drops a table, as DROP DATABASE does.
func (f *Front) dropBucket(ctx context.Context, name string, by asker) error {
	if by.deletes != nil {
		return by.deletes
	}
	if err := f.allows(by, access.Admin, name); err != nil {
		return err
	}
	if f.tables == nil {
		return fault.Errorf(fault.Denied, "buckets are not deleted from here: `spillway table drop` does it")
	}
	return f.tables.Drop(ctx, name, by.identity.Name)
}

// changeBucket sets the retention of a table. Without a rule it stays: clients send the rules that they read.
func (f *Front) changeBucket(ctx context.Context, c *call, name string, by asker) error {
	if err := f.allows(by, access.Admin, name); err != nil {
		return err
	}
	var want struct {
		Name           *string `json:"name"`
		RetentionRules []rule  `json:"retentionRules"`
	}
	if err := f.readBucket(ctx, c, &want); err != nil {
		return err
	}
	if want.Name != nil && *want.Name != name {
		return fault.Errorf(fault.Invalid, "a bucket is a table, whose name cannot be changed: %q stays %q", name, name)
	}
	keep, err := keepOf(want.RetentionRules)
	if err != nil || keep == nil {
		return err
	}
	if f.tables == nil {
		return fault.Errorf(fault.Denied, "buckets are not changed from here: `spillway table set` does it")
	}
	t, err := f.existing(ctx, name)
	if err != nil {
		return err
	}
	return f.keep(ctx, by, name, t, *keep)
}

// keepOf is the retention that rules ask for; nil without any.
func keepOf(rules []rule) (*time.Duration, error) {
	switch {
	case len(rules) == 0:
		return nil, nil
	case len(rules) > 1 || rules[0].Type != "" && rules[0].Type != "expire" || rules[0].EverySeconds < 0 || rules[0].EverySeconds > math.MaxInt64/int64(time.Second):
		return nil, fault.Errorf(fault.Invalid, "retentionRules: one rule of the type expire is taken, with everySeconds of 0 (for ever) or more")
	}
	keep := time.Duration(rules[0].EverySeconds) * time.Second
	return &keep, nil
}

// orgs serves GET /api/v2/orgs. Every requested organisation exists, since writes ignore it.
func (f *Front) orgs(_ context.Context, c *call) Response {
	o := org{idOf("org", orgName), orgName}
	if name := c.Query.Get("org"); name != "" {
		o.Name = name
	}
	return asJSON(http.StatusOK, struct {
		Links map[string]string `json:"links"`
		Orgs  []org             `json:"orgs"`
	}{map[string]string{"self": "/api/v2/orgs"}, []org{o}})
}
