import {
  NodeConnectionTypes,
  type IExecuteFunctions,
  type INodeExecutionData,
  type INodeType,
  type INodeTypeDescription,
} from 'n8n-workflow';
import { operations, properties } from './operations';
import { outputsExpression, shield, type Operation, type Results } from './outputs';
import { runOperation } from './run';

export class RedisLock implements INodeType {
  description: INodeTypeDescription = {
    displayName: 'Redis Lock',
    name: 'redisLock',
    icon: { light: 'file:redisLock.svg', dark: 'file:redisLock.dark.svg' },
    group: ['transform'],
    version: [1],
    // The key as it was typed: on the canvas there is no item to evaluate its expression with.
    subtitle: '={{ $parameter["operation"] + ($rawParameter["key"] ? ": " + String($rawParameter["key"]).replace(/^=/, "") : "") }}',
    description: 'Lets only one execution at a time work on the same thing, across all workers',
    defaults: { name: 'Redis Lock' },
    // An agent reads the first output only, so it could not tell a winner from a loser.
    usableAsTool: undefined,
    inputs: [NodeConnectionTypes.Main],
    outputs: outputsExpression as `={{${string}}}`,
    credentials: [{ name: 'redis', required: true }],
    properties,
  };

  async execute(this: IExecuteFunctions): Promise<INodeExecutionData[][]> {
    const guard = shield(this);
    if (guard.before) {
      guard.lower(guard.before, false);
      return guard.before;
    }
    let results: Results | undefined;
    try {
      const operation = this.getNodeParameter('operation', 0) as Operation;
      results = await runOperation(this, operation, operations[operation], guard);
    } finally {
      if (!results) guard.fail();
    }
    const outputs = results.outputs();
    guard.lower(outputs, results.failed);
    return outputs;
  }
}
