package administration

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
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
	s, all, err := a.plan(ctx, cfg.ForMaster())
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
	moves := []planMove{}
	for _, m := range master.MovesByLoad(&s, cfg.ForMaster()) {
		if !c.Alarms {
			moves = append(moves, planMove{Table: m.Table, Partition: m.Partition, From: m.From, To: m.To, Seconds: int64(m.For.Seconds()), GivenUp: m.Ended, ClockAhead: m.ClockAhead, Rests: int64(m.Rests.Seconds()), Why: m.Note.Reason})
		}
	}
	for _, m := range master.PassedOver(s, cfg.ForMaster(), a.rng) {
		if !c.Alarms {
			moves = append(moves, planMove{Table: m.Table, Partition: m.Partition, From: m.From, To: m.To, PassedOver: m.PassedOver, Why: m.Note.Reason})
		}
	}
	holder, err := a.master(ctx)
	if err != nil {
		return err
	}
	return a.print(map[string]any{"master": holder, "steps": shown, "moves_by_load": moves}, func(w io.Writer) {
		fmt.Fprintf(w, "master: %s\n%s", cmp.Or(string(holder), "none"), master.Format(steps))
		if len(moves) > 0 {
			fmt.Fprint(w, "\nMOVE BY LOAD\tFROM\tTO\tSTATE\tWHY\n")
		}
		for _, m := range moves {
			fmt.Fprintf(w, "%s/%d\t%s\t%s\t%s\t%s\n", m.Table, m.Partition, m.From, m.To, m.state(), m.Why)
		}
	})
}

// planMove is a move by load as shown.
type planMove struct {
	Table     string            `json:"table"`
	Partition point.PartitionID `json:"partition"`
	From      topology.ServerID `json:"from"`
	To        topology.ServerID `json:"to"`
	// Seconds have passed since it began, or was given up; 0 where that is later than now, by a clock that was ahead.
	Seconds    int64 `json:"seconds"`
	GivenUp    bool  `json:"given_up,omitempty"`
	ClockAhead bool  `json:"clock_ahead,omitempty"`
	// Rests is for how many seconds neither the partition nor the target has part in another one; 0 where that is not known, for a clock that was ahead.
	Rests int64 `json:"rests_seconds,omitempty"`
	// PassedOver is why it does not begin, where it would make loads more even.
	PassedOver string `json:"passed_over,omitempty"`
	Why        string `json:"why"`
}

func (m planMove) state() string {
	ago := since(time.Duration(m.Seconds) * time.Second)
	switch {
	case m.PassedOver != "":
		return "passed over: " + m.PassedOver
	case m.GivenUp && m.ClockAhead:
		return "given up, by a clock that is ahead"
	case m.ClockAhead:
		return "under way, by a clock that is ahead"
	case m.GivenUp:
		return fmt.Sprintf("given up %s ago; no other of it or to %s for %s", ago, m.To, since(time.Duration(m.Rests)*time.Second))
	}
	return "under way for " + ago
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
