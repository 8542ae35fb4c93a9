'use strict';

/**
 * The lock engine, for n8n Code nodes and for any Node.js program. See README.md, "From code".
 */
module.exports = require('./dist/engine');
