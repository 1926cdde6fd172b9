package main

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// selfIntervalMin bounds how often the process scrapes itself: each time costs a few ms.
const selfIntervalMin = time.Second

// selfWidth is the time that a partition of the process's metrics covers: a day is a few MB.
const selfWidth = 24 * time.Hour

func (c *config) self() topology.Config {
	return topology.Config{Retention: time.Duration(c.Self.Retention), PartitionWidth: selfWidth}
}

// scrapesItself makes the scraper of this process; nil: it is switched off.
func (p *standalone) scrapesItself() *scrape.Scraper {
	if p.cfg.Self.ScrapeInterval == 0 {
		return nil
	}
	return scrape.New(scrape.Deps{Gatherer: p.registry, Target: p.ownTable, Memory: p.accounts.scrape, Log: p.log, Registerer: p.registry},
		scrape.Settings{Interval: time.Duration(p.cfg.Self.ScrapeInterval), Instance: p.listener.Addr().String()})
}

// ownTable finds the table of the process's metrics. It is made here and not by its first write, which would give it the retention of users' tables.
func (p *standalone) ownTable(ctx context.Context) (scrape.Target, error) {
	if _, err := p.tables.Create(ctx, scrape.Table, p.cfg.self()); err != nil {
		return nil, err
	}
	return p.forward.Table(ctx, scrape.Table)
}
