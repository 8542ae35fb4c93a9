'use strict';

// This project's own packages. The scripts run before anything is installed, so they see to it.

const fs = require('node:fs');
const path = require('node:path');
const { npm } = require('./npm');
const { withProgress } = require('./progress');
const { ROOT } = require('./package');

const OLDEST_NODE = [20, 19];

/** @throws {Error} when the running Node is too old for this project */
function checkNode() {
  const [major, minor] = process.versions.node.split('.').map(Number);
  const [needMajor, needMinor] = OLDEST_NODE;
  if (major < needMajor || (major === needMajor && minor < needMinor)) {
    throw new Error(`This needs Node ${needMajor}.${needMinor} or newer; this is ${process.version}.`);
  }
}

/**
 * Whether `node_modules` holds what `package-lock.json` says. npm keeps a list of what it has installed; the two lists
 * must agree (packages for other platforms aside).
 */
function isInstalled() {
  try {
    const read = (...parts) => JSON.parse(fs.readFileSync(path.join(ROOT, ...parts), 'utf8')).packages;
    const wanted = read('package-lock.json');
    const present = read('node_modules', '.package-lock.json');
    return Object.entries(wanted).every(([name, entry]) => {
      if (name === '') return true;
      if (!present[name]) return Boolean(entry.optional || entry.devOptional || entry.extraneous);
      return present[name].version === entry.version;
    });
  } catch {
    return false;
  }
}

/** Installs this project's packages, when they are missing or not those of the lock file. */
async function ensureDependencies() {
  checkNode();
  if (isInstalled()) return;
  await withProgress('Installing the packages of this project', () =>
    npm(['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'], { cwd: ROOT }),
  );
}

/** Builds the package into `dist`. */
async function build({ quiet = false } = {}) {
  await npm(['run', 'build'], { cwd: ROOT, quiet });
}

module.exports = { ensureDependencies, build };
