// Package settings declares the settings of users, once: Config. Flags, variables, a YAML file and the page docs/configuration.md follow from
// the declaration, and so do the settings of each part: ForBrick, ForIntake and the like. A default that the part has too is declared there: PackageDefaults.
//
//	defaults ─▶ YAML file ─▶ SPILLWAY_… ─▶ flags ─▶ Complete: bounds that follow from memory and descriptors, checks
//
// It starts nothing and opens nothing. The state of a running process, such as the limit of its heap, is not here.
package settings
