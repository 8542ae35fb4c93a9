'use strict';

// The package as its users get it: packed by npm, and installed from that tarball.

const fs = require('node:fs');
const path = require('node:path');
const { npm } = require('./npm');

const ROOT = path.join(__dirname, '..', '..');
const ALLOWED = [/^dist\//, /^index\.js$/, /^README\.md$/, /^LICENSE$/, /^package\.json$/];
const REQUIRED = ['index.js', 'README.md', 'LICENSE', 'package.json', 'dist/nodes/RedisLock/RedisLock.node.js'];
/** Every n8n instance installs it: growth beyond this wants a reason. */
const MAX_UNPACKED_BYTES = 450_000;

/**
 * Packs this project (which must be built).
 *
 * @param {string} destination folder for the tarball
 * @returns {Promise<{ tarball: string, files: string[], unpackedSize: number }>}
 */
async function packPackage(destination) {
  const out = await npm(['pack', '--json', '--ignore-scripts', '--pack-destination', destination], { cwd: ROOT });
  const [packed] = JSON.parse(out);
  return {
    tarball: path.join(destination, packed.filename.replace('@', '').replace('/', '-')),
    files: packed.files.map((file) => file.path),
    unpackedSize: packed.unpackedSize,
  };
}

/**
 * What is wrong with a packed package, in words.
 *
 * @param {{ files: string[], unpackedSize: number }} packed
 * @returns {string[]} empty when all is well
 */
function complaintsAbout({ files, unpackedSize }) {
  const tooMuch = files
    .filter((file) => !ALLOWED.some((pattern) => pattern.test(file)))
    .map((file) => `${file} does not belong into the package`);
  const missing = REQUIRED.filter((file) => !files.includes(file)).map((file) => `${file} is missing from the package`);
  const tooBig =
    unpackedSize >= MAX_UNPACKED_BYTES
      ? [`the package has ${unpackedSize} bytes unpacked, ${MAX_UNPACKED_BYTES} are too many`]
      : [];
  return [...tooMuch, ...missing, ...tooBig];
}

/**
 * Installs a tarball into an n8n user folder, as its users do. Works before n8n's first start as well.
 *
 * @param {string} userFolder what `N8N_USER_FOLDER` says
 * @param {string} tarball
 * @param {string} nodeHome the Node that n8n runs on
 */
async function installForN8n(userFolder, tarball, nodeHome) {
  const cwd = path.join(userFolder, '.n8n', 'nodes');
  fs.mkdirSync(cwd, { recursive: true });
  const manifest = path.join(cwd, 'package.json');
  // The same one that n8n writes there at its first start.
  if (!fs.existsSync(manifest))
    fs.writeFileSync(manifest, JSON.stringify({ name: 'installed-nodes', private: true, dependencies: {} }));
  // --legacy-peer-deps: the peer n8n-workflow is n8n's own copy and must not be installed a second time.
  await npm(
    ['install', tarball, '--legacy-peer-deps', '--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error'],
    { cwd, nodeHome },
  );
}

module.exports = { packPackage, complaintsAbout, installForN8n, ROOT };
