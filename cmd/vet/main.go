package main

import (
	"os"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/stdmethods"
	vetsuite "golang.org/x/tools/go/analysis/suite/vet"
	"honnef.co/go/tools/lintcmd"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() {
	cmd := lintcmd.NewCommand("vet")
	cmd.ParseFlags(os.Args[1:])
	cmd.AddBareAnalyzers(slices.DeleteFunc(slices.Clone(vetsuite.Suite), func(a *analysis.Analyzer) bool {
		return a == stdmethods.Analyzer // the Seek of chunkenc.Iterator is not that of io.Seeker
	})...)
	cmd.AddAnalyzers(simple.Analyzers...)
	cmd.AddAnalyzers(staticcheck.Analyzers...)
	cmd.AddAnalyzers(stylecheck.Analyzers...)
	cmd.AddAnalyzers(unused.Analyzer)
	cmd.Run()
}
