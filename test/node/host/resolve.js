'use strict';

const Module = require('node:module');
const path = require('node:path');

/**
 * From here on `n8n-core` and `n8n-workflow` are the copies of one engine line, whoever asks:
 * the host, its test nodes and the built node, none of which lies inside that engine's folder.
 */
function resolveEngineFrom(engineFolder) {
  const inside = path.join(engineFolder, 'node_modules') + path.sep;
  const resolveFilename = Module._resolveFilename;

  Module._resolveFilename = function (request, parent, isMain, options) {
    const isEngine = /^n8n-(core|workflow)(\/|$)/.test(request);
    const asksFromInside = parent?.filename?.startsWith(inside) ?? false;
    return isEngine && !asksFromInside
      ? resolveFilename.call(this, request, parent, isMain, { paths: [engineFolder] })
      : resolveFilename.call(this, request, parent, isMain, options);
  };
}

module.exports = { resolveEngineFrom };
