package administration

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Master has the commands about the plans of the master.
type Master struct {
	Plan masterPlanCmd `cmd:"" help:"Show what the master would do now, and why; nothing is done."`
}

type masterPlanCmd struct {
	Flags      `embed:""`
	Alarms     bool   `name:"alarms" help:"Only what cannot be mended."`
	ConfigFile string `name:"config.file" help:"YAML file of the storage servers, for its tables settings (default: the settings by default, which need not be those of the master that runs)." type:"path" env:"SPILLWAY_CONFIG_FILE"`
}

// Run makes a plan from the state seen here. A running master may see silence differently: it counts by its own clock,
// from when it began to look.
func (c *masterPlanCmd) Run() error { return c.with(c.run) }

// planStep is a step as shown.
type planStep struct {
	Kind  string   `json:"kind"`
	Table string   `json:"table,omitempty"`
	What  string   `json:"what"`
	Why   string   `json:"why"`
	Ops   []string `json:"ops,omitempty"`
}

func (c *masterPlanCmd) run(ctx context.Context, a *admin) error {
	cfg, err := settings.Load(c.ConfigFile)
	if err != nil {
		return err
	}
	_, all, err := a.plan(ctx, cfg.ForMaster())
	if err != nil {
		return err
	}
	var steps []master.Step
	for _, step := range all {
		if !c.Alarms || step.Kind == master.Alarm {
			steps = append(steps, step)
		}
	}
	shown := []planStep{}
	for _, step := range steps {
		shown = append(shown, planStep{Kind: step.Kind.String(), Table: step.Table, What: step.What, Why: step.Why, Ops: opStrings(step.Ops)})
	}
	holder, err := a.master(ctx)
	if err != nil {
		return err
	}
	return a.print(map[string]any{"master": holder, "steps": shown}, func(w io.Writer) {
		fmt.Fprintf(w, "master: %s\n%s", cmp.Or(string(holder), "none"), master.Format(steps))
	})
}

// plan looks at the cluster and returns what its master would do next by some settings. Errors name the missing maps, or are the store's.
func (a *admin) plan(ctx context.Context, by master.Settings) (s master.State, steps []master.Step, err error) {
	if err := a.incomplete(); err != nil {
		return s, nil, err
	}
	if s, _, err = a.look(ctx); err != nil {
		return s, nil, err
	}
	if err := s.FillDropped(ctx, a.store); err != nil {
		return s, nil, err
	}
	s.Sizes = master.Sizes(ctx, a.tables.Names(), a.servers.All(), a.peers.Server, a.log)
	if s.Growth, err = a.growth(ctx); err != nil {
		return s, nil, err
	}
	return s, master.Plan(s, by, a.rng), nil
}

func opStrings(ops []topology.Op) []string {
	var out []string
	for _, op := range ops {
		out = append(out, op.String())
	}
	return out
}

// master returns the server that the master's row names; "" for none.
func (a *admin) master(ctx context.Context) (topology.ServerID, error) {
	row, ok, err := a.store.Get(ctx, master.Key)
	if err != nil || !ok {
		return "", err
	}
	h, err := master.DecodeHolder(row.Value)
	return h.Holder, err
}

// masterMoves reports whether the master's row changed since it was read.
func (a *admin) masterMoves(ctx context.Context, before coord.Row) (bool, error) {
	row, _, err := a.store.Get(ctx, master.Key)
	return row.Revision != before.Revision, err
}
