'use strict';

// The n8n versions that the package is tried on, each pinned by a lock file of its own. n8n stays out of this
// project's package.json: it is some two thousand packages.

const fs = require('node:fs');
const path = require('node:path');
const { ensureInstalled } = require('./install');
const { ensureNode24 } = require('./node');

const LOCKS = path.join(__dirname, '..', '..', 'test', 'e2e', 'n8n');

/** The version that `npm test` and `npm run demo` use. */
const MAIN_VERSION = '2.41.1';

/**
 * @returns {string[]} the older versions that `npm run test:compat` uses, newest first
 */
function compatVersions() {
  return fs
    .readdirSync(LOCKS)
    .filter((version) => version !== MAIN_VERSION)
    .sort((a, b) => b.localeCompare(a, 'en', { numeric: true }));
}

/**
 * Makes sure that one n8n is installed in the cache (a cold start takes minutes).
 *
 * @param {string} version one that has a lock file
 * @returns {Promise<{ version: string, nodeHome: string, folder: string }>} `folder` contains its `node_modules`
 */
async function ensureN8n(version) {
  const nodeHome = await ensureNode24();
  const folder = await ensureInstalled(path.join(LOCKS, version), {
    label: `n8n ${version}`,
    // The only native modules that a server needs to start; the many others of n8n's nodes stay unbuilt.
    rebuild: ['sqlite3', 'isolated-vm'],
    nodeHome,
  });
  return { version, nodeHome, folder };
}

module.exports = { ensureN8n, compatVersions, MAIN_VERSION };
