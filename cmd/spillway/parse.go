package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
)

// parse reads a command line in the steps of kong's own Parse, which looks for hooks between them. Hooks are methods that
// it finds by their names at run time, and the linker keeps every exported method of every type in a program that does so:
// a fifth of the binary. Commands are run by runSelected for the same reason; cmd/archtest guards it.
//
// If help was asked for, it is printed and parse returns nil and no error. After an error the context may be nil.
func parse(k *kong.Kong, help kong.HelpOptions, args []string) (*kong.Context, error) {
	ctx, err := kong.Trace(k, args)
	if err != nil {
		return nil, terminal.UsageError{Err: err}
	}
	if ctx.Error != nil {
		return ctx, terminal.UsageError{Err: ctx.Error}
	}
	for _, p := range ctx.Path {
		if p.Flag != nil && p.Flag == k.Model.HelpFlag {
			help.ValueFormatter = kong.DefaultHelpValueFormatter
			return nil, kong.DefaultHelpPrinter(help, ctx)
		}
	}
	if err := ctx.Reset(); err != nil {
		return ctx, err
	}
	if err := ctx.Resolve(); err != nil {
		return ctx, err
	}
	if _, err := ctx.Apply(); err != nil {
		return ctx, err
	}
	if err := ctx.Validate(); err != nil {
		return ctx, terminal.UsageError{Err: err}
	}
	return ctx, nil
}

// failUsage prints the usage of the command and the error, and returns the exit code of the process.
func failUsage(k *kong.Kong, help kong.HelpOptions, ctx *kong.Context, err error) int {
	if ctx != nil {
		_ = kong.DefaultShortHelpPrinter(help, ctx) // standard output is away: the error follows on the other
		fmt.Fprintln(os.Stdout)
	}
	k.Errorf("%s", err.Error())
	var usage terminal.UsageError
	if errors.As(err, &usage) {
		return usage.ExitCode()
	}
	return 1
}

// runSelected runs the command that was selected.
func runSelected(ctx *kong.Context) error {
	switch c := ctx.Selected().Target.Addr().Interface().(type) {
	case interface{ Run() error }:
		return c.Run()
	case interface{ Run(*kong.Context) error }:
		return c.Run(ctx)
	default:
		return fmt.Errorf("%s does nothing", ctx.Command())
	}
}
