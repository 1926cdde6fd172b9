// Package setting holds the settings of a user, each declared once: as a field of a struct, with its tags.
//
//	LogBytesMax setting.Bytes `yaml:"log_bytes_max" auto:"half of the disk" min:"64MiB" help:"Bound of the common log." price:"Smaller: more flushes."`
//	        │
//	        └─▶ List ─▶ key storage.log_bytes_max · variable SPILLWAY_STORAGE_LOG_BYTES_MAX · flag --storage.log-bytes-max
//	            Fill, Defaults: the default · Check: bounds and choices · Setting.Set: one value from text · Reference: the page for users
//
// Tags of a field:
//
//	yaml     the last part of its key, with the options of the yaml package
//	default  its default, as a user would write it; where a value is needed and none is given, the zero value
//	         (not where a package has it: Shared)
//	auto     how the default is worked out, where it depends on the machine or on other settings
//	min, max its bounds, both included; numbers, sizes and times that are not set may be zero nevertheless
//	one_of   its values, apart by spaces
//	help     one sentence or more: its meaning
//	price    the cost of more, or less, of it
//	flag     the name of a flag that --help shows; without it the flag has the key's name and --help does not show it
//	name     the same, where the field is a flag of commands, too; env is then the setting's variable
//	reload   on a struct or a field, "yes": read again by a running process
//	for      on a struct or a field: the processes that have it; without it all
//
// The package refuses to do: reading files, declaring any setting.
package setting
