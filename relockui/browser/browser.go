// Package browser tests the page of package relockui in a real browser, headless Chromium. It is a module of its own,
// so that relockui has no dependencies.
package browser
