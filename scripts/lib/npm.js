'use strict';

// npm, as a child of these scripts. When a script itself runs under npm (`npm test`), npm has put the settings
// of this project into the environment; they must not reach an npm that works in another folder (this
// project's `ignore-scripts`, for one, would turn `npm rebuild` into a no-op).

const path = require('node:path');
const { run } = require('./processes');

const FROM_OUTER_NPM =
  /^npm_(package_|lifecycle_|command$|execpath$|node_execpath$|config_(ignore_scripts|local_prefix|node_gyp|noproxy)$)/i;

/**
 * @param {string} [nodeHome] folder with `bin/node` (and, for native modules, `include/node`); default: the Node on the path
 * @returns {NodeJS.ProcessEnv} an environment in which `npm` and `node` mean that Node
 */
function npmEnvironment(nodeHome) {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !FROM_OUTER_NPM.test(name)));
  if (!nodeHome) return env;
  return {
    ...env,
    PATH: `${path.join(nodeHome, 'bin')}${path.delimiter}${env.PATH ?? ''}`,
    // Without this, node-gyp would compile against the headers of another Node.
    npm_config_nodedir: nodeHome,
  };
}

/**
 * Runs npm quietly in a folder.
 *
 * @param {string[]} args
 * @param {{ cwd: string, nodeHome?: string, quiet?: boolean }} options
 * @returns {Promise<string>} stdout
 */
function npm(args, { cwd, nodeHome, quiet = true }) {
  return run('npm', args, { cwd, env: npmEnvironment(nodeHome), quiet });
}

module.exports = { npm, npmEnvironment };
