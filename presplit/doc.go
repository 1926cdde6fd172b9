// Package presplit decides which partitions of a table must exist before their time comes (C35): it records how fast a table grows, forecasts
// how fast it will, and chooses edges such that each partition to come closes near a target size. Nothing here has a clock, a lock or I/O: the
// master runs it, and Backtest replays a recorded load through the very same functions.
//
//	sizes, once a minute ──▶ History ──Forecast(now)──▶ rate at each minute to come ──Plan.Edges──▶ edges ──▶ topology.Presplit
//	                         15 days                    level × season                             target size, width, alignment
//
// A partition can be cut again until servers begin to lead it, so that an edge is decided finally only some minutes before its time, and the forecast
// for the hours behind it only has to be good enough to place partitions on servers.
package presplit
