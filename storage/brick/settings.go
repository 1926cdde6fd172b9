package brick

import (
	"errors"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Deps are the brick's injected dependencies.
type Deps struct {
	FS         vfs.FS                 // nil: the operating system's
	Log        *slog.Logger           // nil: nothing is logged
	Registerer prometheus.Registerer  // nil: metrics are counted and not shown
	Files      func(dir string) Files // FilesOf; nil: files are not counted
}

func (d *Deps) setDefaults() {
	if d.FS == nil {
		d.FS = vfs.Default
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
}

// RecordBytesMax bounds one record. A frame is a few hundred kB; 32 MiB leaves room for the largest request body.
const RecordBytesMax = 32 << 20

// Settings are the user's settings.
type Settings struct {
	// DataDir holds the catalogue and the segments. Required.
	DataDir string
	// LogDir holds the log files (C86). Default DataDir/log. On a separate device, fsyncs do not wait behind flushes.
	LogDir string
	// Restoring opens a directory that a restore fills. Others refuse it.
	Restoring bool
	// FileBytesMax is where a log file ends; a little more is written while the next one is being made. Default 64 MiB.
	// Larger: fewer files, but one slow placement pins more bytes.
	FileBytesMax int64
	// InFlightBytesMax bounds the bytes appended and not yet fsynced; beyond it Append returns Throttled. Default 64 MiB.
	InFlightBytesMax int64
	// CatalogueMemBytes is the catalogue's memtable. Default 1 MiB. Larger: fewer flushes, longer start.
	CatalogueMemBytes int64
	// NoSync acknowledges when the operating system has the bytes. A killed process loses nothing, a power cut loses all records
	// acknowledged since the last file ended. The catalogue is synced all the same. Default off.
	NoSync bool
	// FreeBytesMin makes the brick read-only while less is free on either device. Default 512 MiB. A disk that is truly full
	// fences the brick and costs a restart; this limit prevents that.
	FreeBytesMin uint64
	// SkipDamagedLog accepts the loss of damaged records at the next start instead of refusing it. Skipped records are logged and
	// remembered, so that the setting is needed once. Default off.
	SkipDamagedLog bool
	// LostFoundKeep is how long files in lost+found are kept for an operator to look at. Default 30 days; below zero: for ever.
	LostFoundKeep time.Duration
}

const (
	// LostFoundKeepDefault is how long an operator has to look at files in lost+found.
	LostFoundKeepDefault = 30 * 24 * time.Hour
	// FreeBytesMinDefault leaves room for the flushes and the catalogue of a read-only brick.
	FreeBytesMinDefault = 512 << 20

	fileBytesMin = 64 << 10
	fileBytesMax = 1 << 30 // an extent counts offsets in 32 bits, with room for records that come while the next file is made
)

func (s *Settings) setDefaults(fs vfs.FS) {
	if s.LogDir == "" && s.DataDir != "" {
		s.LogDir = fs.PathJoin(s.DataDir, "log")
	}
	if s.FileBytesMax == 0 {
		s.FileBytesMax = 64 << 20
	}
	if s.InFlightBytesMax == 0 {
		s.InFlightBytesMax = 64 << 20
	}
	if s.CatalogueMemBytes == 0 {
		s.CatalogueMemBytes = 1 << 20
	}
	if s.LostFoundKeep == 0 {
		s.LostFoundKeep = LostFoundKeepDefault
	}
	if s.FreeBytesMin == 0 {
		s.FreeBytesMin = FreeBytesMinDefault
	}
}

// Validate reports every mistake at once, as Invalid. Zero values mean defaults and are fine, except DataDir.
func (s *Settings) Validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fault.Errorf(fault.Invalid, format, args...))
		}
	}
	bad(s.DataDir == "", "data_dir is empty; name the directory that shall hold the data")
	bad(s.DataDir != "" && s.LogDir == s.DataDir, "log_dir and data_dir are both %q; give the log a directory of its own", s.DataDir)
	bad(s.FileBytesMax != 0 && (s.FileBytesMax < fileBytesMin || s.FileBytesMax > fileBytesMax),
		"file_bytes_max is %d; it must lie in [%d, %d]", s.FileBytesMax, fileBytesMin, fileBytesMax)
	bad(s.InFlightBytesMax < 0, "in_flight_bytes_max is %d; it must not be negative", s.InFlightBytesMax)
	bad(s.CatalogueMemBytes != 0 && (s.CatalogueMemBytes < 256<<10 || s.CatalogueMemBytes > 1<<30),
		"catalogue_mem_bytes is %d; it must lie in [256 KiB, 1 GiB]", s.CatalogueMemBytes)
	if len(errs) == 0 {
		return nil
	}
	return fault.Wrap(errors.Join(errs...), fault.Invalid, "brick settings")
}
